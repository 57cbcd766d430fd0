"""FedStale: between forgetting the absent clients and trusting what they sent last."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class StaleMixture(Aggregator):
    r"""Mixes fresh and remembered updates by a constant beta (FedStale, Rodio & Neglia 2024).

    .. math::
        \beta \sum_j w_j y_j
        + \frac1K \sum_{m\ \mathrm{delivered}} n_m \frac{w_m}{p_m (1-q_m)} (\Delta_m - \beta y_m)

    is the direction, and then :math:`y_m \leftarrow \Delta_m` for the clients that arrived. beta = 0 is c-a-FedAvg,
    beta = 1 FedVARP in its ``importance`` form; :math:`\Omega \propto w A` for all. Memory takes M times the size of
    the model.

    Args:
        beta: How much memory counts, from 0 to 1.
    """

    memory = ("last_updates",)

    def __init__(self, beta: float = 0.5) -> None:
        if not 0 <= beta <= 1:
            raise ValueError(f"beta={beta} must be between 0 and 1")
        self.beta = beta

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.last_updates = weights.new_zeros((num_clients, len(weights)))

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)): the fresh part is unbiased, so memory adds nothing in expectation."""
        return matching_coefficients(profiles.weights, profiles, cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        rows = torch.from_numpy(updates.clients)
        fresh = updates.deltas - self.beta * self.last_updates[rows]
        remembered = self.beta * weighted_sum(plan.profiles.weights, self.last_updates)
        shares = delivered[updates.clients] * plan.coefficients[updates.clients] / plan.cohort.num_draws
        self.last_updates[rows] = updates.deltas
        return remembered + weighted_sum(shares, fresh)
