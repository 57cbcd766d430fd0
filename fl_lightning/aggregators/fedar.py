"""FedAR: the last updates of absent clients count less, the longer they have been away."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import weighted_sum
from fl_lightning.aggregators.client_rows import RowStorage
from fl_lightning.aggregators.fedvarp import MemorizedMean
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector, widened


class RectifiedMean(MemorizedMean):
    r"""Is MIFA with a weight on each remembered update that falls with its age (FedAR, Jiang et al. 2024).

    .. math:: X \leftarrow X - \eta \frac{\sum_j w_j \psi_j y_j}{\sum_{j\ \mathrm{known}} w_j}, \qquad
        \psi_j = \gamma^{\tau_j}

    with :math:`\tau_j` the rounds since client j arrived and those known who ever did. A client that arrives in a share
    r of the rounds has :math:`\mathrm{E}[\psi] = r / (1 - \gamma (1 - r))`, so that :math:`\Omega \propto w A
    \mathrm{E}[\psi]`: between FedAvg over who arrived (gamma near 0) and MIFA (gamma = 1). Read from the abstract and a
    summary of the paper, which say what :math:`\psi` depends on and not how: the power is ours.

    Args:
        gamma: Factor on a remembered update for each round of absence.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True, effect="bounded", absence="bounded")
    memory = ("rectified", "factors")

    def __init__(self, gamma: float = 0.9, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma={gamma} must be above 0 and at most 1")
        self.gamma = gamma

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.rectified = torch.zeros_like(widened(weights))  # sum of w psi y
        self.factors = np.zeros(num_clients)  # psi; 0 before the first upload

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return MIFA's c times the mean of psi."""
        arriving = cohort.inclusion * (1 - profiles.failure_rates)
        return super().coefficients(profiles, cohort) * arriving / np.maximum(1 - self.gamma * (1 - arriving), 1e-12)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        weights, clients = plan.profiles.weights, updates.clients
        replaced = weighted_sum((weights * self.factors)[clients], widened(self.last_updates[clients]))
        self.remember(updates, updates.deltas, plan.profiles)
        fresh = weighted_sum(weights[clients], widened(self.last_updates[clients]))
        self.rectified = self.gamma * (self.rectified - replaced) + fresh
        self.factors = self.gamma * self.factors
        self.factors[clients] = 1.0
        known = float(weights[self.factors > 0].sum())
        return (self.rectified / max(known, 1e-300)).to(updates.deltas)
