"""Everything a run needs to resume after its last finished round as if it had never stopped."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fl_lightning.loop.module_hooks import load_module_state, module_state
from fl_lightning.loop.watching import added_callbacks
from fl_lightning.types import ModelState

_PARTS = (
    *("schedule", "sampling", "channel", "solver", "aggregator", "averaging", "calibration", "engine", "record"),
    *("local_parts", "uploads", "spent"),
)


def snapshot(loop: Any) -> dict[str, Any]:
    """Return the state of a loop and all its parts, as tensors, numbers, strings and containers of them.

    Random streams need no state, because each is a function of (seed, purpose, round, client); only what a module draws
    outside of local training and evaluation depends on torch's own stream. What a module keeps outside its parameters
    and buffers is saved by its ``on_save_checkpoint``.
    """
    own = module_state(loop.module, loop.round_index)
    return {
        "round": loop.round_index,
        "seed": loop.seed,
        "weights": loop.state.weights,
        "buffers": loop.state.buffers,
        "counters": _counters(loop.module),
        "random": torch.get_rng_state(),
        "parts": {name: part.state_dict() for name, part in _parts(loop) if hasattr(part, "state_dict")},
        **({} if own is None else {"module": own}),
    }


def restore(loop: Any, state: dict[str, Any]) -> None:
    """Put a loop, already set up with the same arguments, module and data, into the state of a snapshot.

    Raises:
        ValueError: If the snapshot is of another kind of run.
    """
    try:
        _restore(loop, state)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the checkpoint does not fit this run: {type(error).__name__}: {error}") from None


def _restore(loop: Any, state: dict[str, Any]) -> None:
    weights, buffers = loop.state.weights, loop.state.buffers
    if state["weights"].shape != weights.shape or state["buffers"].shape != buffers.shape:
        raise ValueError(
            f"the checkpoint has {state['weights'].numel()} weights and {state['buffers'].numel()} buffer values, "
            f"but the module has {weights.numel()} and {buffers.numel()}"
        )
    loop.round_index = int(state["round"])
    loop.state = ModelState(state["weights"].to(weights), state["buffers"].to(buffers))
    for name, counter in _counters(loop.module).items():
        counter.copy_(state["counters"][name])
    torch.set_rng_state(state["random"])
    for name, part in _parts(loop):
        if name in state["parts"]:
            part.load_state_dict(state["parts"][name])
    loop.engine.load(loop.state)
    load_module_state(loop.module, loop.round_index, state.get("module"))


def _parts(loop: Any) -> Iterator[tuple[str, Any]]:
    """Yield what may have memory, by names that do not depend on which loggers are used."""
    for name in _PARTS:
        yield name, getattr(loop, name)
    seen: Counter[str] = Counter()
    for callback in added_callbacks(loop):
        name = type(callback).__qualname__
        seen[name] += 1
        yield f"callback {name} {seen[name]}", callback


def _counters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are not part of the flat state: integers, such as a count of batches."""
    return {name: buffer for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
