"""FedStale: between forgetting the absent clients and trusting what they sent last."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.aggregators.client_rows import RowStorage, SummedRows
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class StaleMixture(Aggregator):
    r"""Mixes fresh and remembered updates by a constant beta (FedStale, Rodio & Neglia 2024).

    .. math::
        \beta \sum_j w_j y_j
        + \frac1K \sum_{m\ \mathrm{delivered}} n_m \frac{w_m}{p_m (1-q_m)} (\Delta_m - \beta y_m)

    is the direction, and then :math:`y_m \leftarrow \Delta_m` for the clients that arrived. beta = 0 is c-a-FedAvg,
    beta = 1 FedVARP in its ``importance`` form; :math:`\Omega \propto w A` for all. Memory takes the size of the
    model for each client that ever arrived.

    Args:
        beta: How much memory counts, from 0 to 1.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True)
    memory = ("last_updates",)

    def __init__(self, beta: float = 0.5, storage: RowStorage | None = None) -> None:
        if not 0 <= beta <= 1:
            raise ValueError(f"beta={beta} must be between 0 and 1")
        self.beta, self.storage = beta, storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.last_updates = SummedRows(num_clients, weights, self.storage)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)): the fresh part is unbiased, so memory adds nothing in expectation."""
        return matching_coefficients(profiles.weights, profiles, cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        fresh = updates.deltas - self.beta * self.last_updates[updates.clients]
        remembered = self.beta * self.last_updates.total(plan.profiles.weights)
        shares = delivered[updates.clients] * plan.coefficients[updates.clients] / plan.cohort.num_draws
        self.last_updates.replace(updates.clients, updates.deltas, plan.profiles.weights)
        return remembered + weighted_sum(shares, fresh)
