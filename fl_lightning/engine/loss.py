"""The loss of one local step."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from lightning.pytorch import LightningModule


def training_loss(module: LightningModule, batch: Any, index: int) -> torch.Tensor:
    """Return the loss of a training step, whatever form the module returns it in."""
    return loss_of(module, training_output(module, batch, index))


def training_output(module: LightningModule, batch: Any, index: int) -> Any:
    """Return what a training step returns."""
    step = module.training_step
    return step(batch, index) if takes_index(type(module).training_step) else step(batch)


def loss_of(module: LightningModule, output: Any) -> torch.Tensor:
    """Return the loss in what a training step returned."""
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        raise ValueError(
            f"{type(module).__name__}.training_step must return the loss as a scalar tensor, or a dict with one under "
            f"'loss', but returned {type(output).__name__}"
        )
    return loss


@lru_cache(maxsize=256)
def takes_index(step: Callable[..., Any]) -> bool:
    """Return whether a step wants ``batch_idx`` as well, which Lightning leaves to the module.

    >>> takes_index(lambda self, batch: 0), takes_index(lambda self, batch, batch_idx: 0)
    (False, True)
    """
    kinds = [parameter.kind for parameter in inspect.signature(step).parameters.values()]
    return len(kinds) > 2 or inspect.Parameter.VAR_POSITIONAL in kinds
