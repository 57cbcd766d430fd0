"""Lightning's checkpoint hooks of a module, for what it keeps outside its parameters and buffers."""

import io
from typing import Any

import torch
from lightning.pytorch import LightningModule

from fl_lightning.parts.memory import encode


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
    try:
        torch.load(io.BytesIO(encode(value)), weights_only=True)
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
