"""What the clients of a round have to do, and the loss of one step of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule

from fl_lightning.types import IntVector


@dataclass(frozen=True)
class LocalWork:
    """What the clients of a round have to do, the same whoever does it."""

    round_index: int
    num_steps: IntVector  # T of all M clients
    learning_rate: float
    start: Callable[[int, torch.Tensor], torch.Tensor]  # the weights a client starts from
    gradient_shift: Callable[[int], torch.Tensor | None]  # what a client adds to its gradients


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
