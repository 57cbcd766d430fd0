"""What the tests share: offline W&B, and the package imported before Lightning."""

import gc
import itertools
import os
import sys
from collections.abc import Iterator

import fl_lightning  # noqa: F401  isort: skip
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
os.environ.setdefault("WANDB_MODE", "offline")
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def _few_objects() -> None:
    """Spare the garbage collector what was made before: it would look through a million objects again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the nodes of each test remember what they answered in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "states" / str(next(_NUMBERS))))


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test imported from its folder: the next may write a module of the same name."""
    before = set(sys.modules)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(vars(sys.modules[name]).get("__file__") or "").startswith(folder):
            del sys.modules[name]


@pytest.fixture
def _no_warning_of_large_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For files that count warnings: their small systems take large steps on purpose."""
    monkeypatch.setattr("fl_lightning.server.rates._LARGE", float("inf"))
