"""FedAvgM: momentum on the server."""

import torch

from fl_lightning.aggregators.base import Aggregator
from fl_lightning.aggregators.server import ServerOptimizer, checked_share


class ServerMomentum(ServerOptimizer):
    r"""Adds up the steps of the rounds with decay (FedAvgM on top of the anonymous mean, Hsu et al. 2019).

    .. math:: v \leftarrow \beta v + g, \qquad X \leftarrow X - \eta_s v

    In the long run the step is :math:`\eta_s / (1-\beta)` times as long as without; ``lr = 1 - momentum`` keeps its
    length. Omega stays what it is.

    Args:
        aggregator: Makes the gradient.
        momentum: beta, in [0, 1).
        lr: eta_s, factor on the step.
    """

    def __init__(self, aggregator: Aggregator, momentum: float = 0.9, lr: float = 1.0) -> None:
        super().__init__(aggregator, lr)
        self.momentum = checked_share("momentum", momentum)

    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a velocity of zero."""
        return {"velocity": torch.zeros_like(weights)}

    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the velocity."""
        moments["velocity"] = self.momentum * moments["velocity"] + gradient
        return moments["velocity"]
