"""The generators that modules and data sets share in a process: torch's, numpy's and Python's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_streams(seed: int, device: torch.device) -> None:
    """Seed all of them, so that what is drawn next depends on the seed alone."""
    # Where no device is at work, torch.manual_seed formats a stack trace for later: longer than a small step.
    seed_torch = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed_torch(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the stream that users' code draws from
    random.seed(seed)


def positions(device: torch.device) -> tuple[Any, ...]:
    """Return where the streams are: equal as long as nobody drew from them."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    numpy_state = (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"])
    on_device = torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else b""
    return torch.get_rng_state().numpy().tobytes(), on_device, numpy_state, random.getstate()


@contextmanager
def kept_streams(device: torch.device) -> Iterator[None]:
    """Leave the streams as they were found, whatever is seeded and drawn inside."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
