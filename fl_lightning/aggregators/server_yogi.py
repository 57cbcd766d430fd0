"""FedYogi: Yogi on the server."""

import torch

from fl_lightning.aggregators.base import Aggregator
from fl_lightning.aggregators.server import ServerOptimizer, checked_epsilon, checked_share


class ServerYogi(ServerOptimizer):
    r"""Is Adam whose denominator changes by a bounded amount (FedYogi on top of the anonymous mean, Reddi et al. 2021).

    .. math::
        m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
        v \leftarrow v - (1-\beta_2) g^2 \operatorname{sign}(v - g^2), \qquad
        X \leftarrow X - \eta_s \frac{m}{\sqrt v + \epsilon}

    After large gradients the denominator shrinks slowly, so steps do not jump when gradients become rare. What
    :class:`ServerAdam` says about start and Omega holds here too.

    Args:
        aggregator: Makes the gradient.
        lr: eta_s, the step of each weight where the gradient is steady.
        beta1: Memory of the mean, in [0, 1).
        beta2: 1 minus the pace of the denominator, in [0, 1).
        epsilon: Gradients well below this are not amplified further.
    """

    def __init__(
        self, aggregator: Aggregator, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-3
    ) -> None:
        super().__init__(aggregator, lr)
        self.beta1, self.beta2 = checked_share("beta1", beta1), checked_share("beta2", beta2)
        self.epsilon = checked_epsilon(epsilon)

    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a mean of zero and a denominator of epsilon squared."""
        return {"mean": torch.zeros_like(weights), "square": torch.full_like(weights, self.epsilon**2)}

    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean over the root of the denominator."""
        square, fresh = moments["square"], gradient**2
        moments["mean"] = torch.lerp(gradient, moments["mean"], self.beta1)
        moments["square"] = square - (1 - self.beta2) * fresh * torch.sign(square - fresh)
        return moments["mean"] / (moments["square"].sqrt() + self.epsilon)
