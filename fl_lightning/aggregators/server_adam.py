"""FedAdam: Adam on the server."""

import torch

from fl_lightning.aggregators.base import Aggregator
from fl_lightning.aggregators.server import ServerOptimizer, checked_epsilon, checked_share


class ServerAdam(ServerOptimizer):
    r"""Divides the mean step by its root mean square (on top of the anonymous mean: FedAdam, Reddi et al. 2021).

    .. math::
        m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
        v \leftarrow \beta_2 v + (1-\beta_2) g^2, \qquad
        X \leftarrow X - \eta_s \frac{m}{\sqrt v + \epsilon}

    As in the original, the moments are not corrected for their start, which is 0 and :math:`\epsilon^2`. The division
    is not linear: Omega is the objective of the gradient, and no step length is defined.

    Args:
        aggregator: Makes the gradient.
        lr: eta_s, the step of each weight where the gradient is steady.
        beta1: Memory of the mean, in [0, 1).
        beta2: Memory of the mean square, in [0, 1).
        epsilon: Gradients well below this are not amplified further.
    """

    def __init__(
        self, aggregator: Aggregator, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-3
    ) -> None:
        super().__init__(aggregator, lr)
        self.beta1, self.beta2 = checked_share("beta1", beta1), checked_share("beta2", beta2)
        self.epsilon = checked_epsilon(epsilon)

    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a mean of zero and a mean square of epsilon squared."""
        return {"mean": torch.zeros_like(weights), "square": torch.full_like(weights, self.epsilon**2)}

    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean over the root mean square."""
        moments["mean"] = torch.lerp(gradient, moments["mean"], self.beta1)
        moments["square"] = torch.lerp(gradient**2, moments["square"], self.beta2)
        return moments["mean"] / (moments["square"].sqrt() + self.epsilon)
