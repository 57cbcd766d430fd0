"""The loss of one local step."""

from typing import Any

import torch
from lightning.pytorch import LightningModule


def training_loss(module: LightningModule, batch: Any, index: int) -> torch.Tensor:
    """Return the loss of a training step, whatever form the module returns it in."""
    output = module.training_step(batch, index)
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        raise ValueError(
            f"{type(module).__name__}.training_step must return the loss as a scalar tensor, or a dict with one under "
            f"'loss', but returned {type(output).__name__}"
        )
    return loss
