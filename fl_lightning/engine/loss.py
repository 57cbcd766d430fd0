"""The loss of one local step."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from lightning.pytorch import LightningModule

from fl_lightning.engine.errors import StepError


def training_loss(module: LightningModule, batch: Any, index: int) -> torch.Tensor:
    """Return the loss of a training step, whatever form the module returns it in."""
    return loss_of(module, training_output(module, batch, index))


def training_output(module: LightningModule, batch: Any, index: int) -> Any:
    """Return what a training step returns."""
    return run_step(module.training_step, batch, index)


def loss_of(module: LightningModule, output: Any) -> torch.Tensor:
    """Return the loss in what a training step returned."""
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        raise StepError(
            f"{type(module).__name__}.training_step must return the loss as a scalar tensor, or a dict with one under "
            f"'loss', but returned {_described(output)}"
        )
    return loss


def differentiable_loss(module: LightningModule, batch: Any, index: int) -> torch.Tensor:
    """Return the loss of a training step that a gradient is wanted of."""
    loss = training_loss(module, batch, index)
    if not loss.requires_grad:
        raise StepError(
            f"{type(module).__name__}.training_step returned a loss without a gradient: return it before detach(), "
            "item() or a new tensor cuts it off from the parameters, and compute it outside torch.no_grad()"
        )
    return loss


def run_step(step: Callable[..., Any], batch: Any, index: int) -> Any:
    """Call a step of a module with the number of the batch, where it takes one, as Lightning does."""
    function = getattr(step, "__func__", step)
    return step(batch, index) if _takes_index(function, function is not step) else step(batch)


@lru_cache(maxsize=256)
def _takes_index(function: Callable[..., Any], bound: bool) -> bool:
    """Return whether a step takes more than the batch; one that is bound to its module takes the module as well."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return True
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(by_position) - bound > 1


def _described(output: Any) -> str:
    if isinstance(output, dict):
        return f"a dict with the keys {sorted(map(str, output))}"
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}: take its mean"
    return "None" if output is None else f"{type(output).__name__}"
