"""Everything a run needs to resume after its last finished round as if it had never stopped."""

import io
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.types import ModelState


def saved(state: ModelState, module: LightningModule, round_index: int, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a model and of all parts that have memory.

    Args:
        state: The global model.
        module: Whose counters and own state are saved.
        round_index: Rounds finished.
        parts: By name; those without ``state_dict`` have no memory.
    """
    own = module_state(module, round_index)
    return {
        "weights": state.weights,
        "buffers": state.buffers,
        "counters": _counters(module),
        "random": torch.get_rng_state(),
        "parts": {name: part.state_dict() for name, part in parts.items() if hasattr(part, "state_dict")},
        **({} if own is None else {"module": own}),
    }


def restored(
    saved: Mapping[str, Any], present: ModelState, module: LightningModule, parts: Mapping[str, Any]
) -> tuple[int, ModelState]:
    """Give module and parts back what was saved, and return how many rounds are finished and the global model.

    Raises:
        ValueError: If it is of another kind of run.
    """
    try:
        return _restored(saved, present, module, parts)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the checkpoint does not fit this run: {type(error).__name__}: {error}") from None


def _restored(
    saved: Mapping[str, Any], present: ModelState, module: LightningModule, parts: Mapping[str, Any]
) -> tuple[int, ModelState]:
    weights, buffers = saved["weights"], saved["buffers"]
    if weights.shape != present.weights.shape or buffers.shape != present.buffers.shape:
        raise ValueError(
            f"the checkpoint has {weights.numel()} weights and {buffers.numel()} buffer values, "
            f"but the module has {present.weights.numel()} and {present.buffers.numel()}"
        )
    for name, counter in _counters(module).items():
        counter.copy_(saved["counters"][name])
    torch.set_rng_state(saved["random"])
    for name, part in parts.items():
        if name in saved["parts"]:
            part.load_state_dict(saved["parts"][name])
    return int(saved["round"]), ModelState(weights.to(present.weights), buffers.to(present.buffers))


def _counters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are not part of the flat state: integers, such as a count of batches."""
    return {name: buffer for name, buffer in module.named_buffers() if not buffer.is_floating_point()}


def module_state(module: LightningModule, round_index: int) -> dict[str, Any] | None:
    """Return what ``on_save_checkpoint`` adds to a checkpoint, or nothing if the module has no such hook.

    Raises:
        ValueError: If it adds something that could not be read back without running code.
    """
    if type(module).on_save_checkpoint is LightningModule.on_save_checkpoint:
        return None
    given = _given(module, round_index)
    checkpoint = dict(given)
    module.on_save_checkpoint(checkpoint)
    added = {name: value for name, value in checkpoint.items() if name not in given}
    for name, value in added.items():
        if not _readable(value):
            raise ValueError(
                f"{type(module).__name__}.on_save_checkpoint stores {name!r} as {type(value).__name__}, which a "
                "checkpoint cannot hold: store tensors, numbers, strings, and lists, tuples and dicts of them "
                "(of a generator its state)"
            )
    return added


def _readable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # pickling and unpickling have many
        return False
    return True


def load_module_state(module: LightningModule, round_index: int, added: dict[str, Any] | None) -> None:
    """Give the module back what it has saved."""
    if added is not None:
        module.on_load_checkpoint({**_given(module, round_index), **added})


def _given(module: LightningModule, round_index: int) -> dict[str, Any]:
    """Return what Lightning's checkpoints hold as well; a round counts as an epoch and as a step."""
    return {"state_dict": module.state_dict(), "epoch": round_index, "global_step": round_index}
