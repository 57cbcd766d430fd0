"""MIFA: the mean of what every client sent last."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, Draw, expected_memory, matching_coefficients, remembered
from fl_lightning.aggregators.client_rows import RowStorage, SummedRows
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class MemorizedMean(Aggregator):
    r"""Steps along the weighted mean of the latest update of every client, however old (MIFA, Gu et al. 2021).

    .. math:: y_m \leftarrow \Delta_m\ \mathrm{for\ delivered}\ m, \qquad X \leftarrow X - \eta \sum_j w_j y_j

    :math:`\Omega \propto w A`, whatever the pattern of participation, with A of the round in which the remembered
    update was made. A client that never arrived counts as zero (the
    original waits for all of them in its first round). When nobody arrives, memory still moves the model. The memory
    takes the size of the model for each client that ever arrived.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True)
    memory = ("last_updates", "last_accumulation")
    last_accumulation: Vector = np.empty(0)  # before a run has begun

    def __init__(self, storage: RowStorage | None = None) -> None:
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.last_updates = SummedRows(num_clients, weights, self.storage)
        self.last_accumulation = np.zeros(num_clients)  # 0 where nothing has arrived yet

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)) for the work that memory holds: all of w is applied in each round."""
        held = remembered(self.last_accumulation, profiles.accumulation)
        return matching_coefficients(profiles.weights * held / profiles.accumulation, profiles, cohort)

    @override
    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector:
        """Return work that memory will hold after the round over what it holds before."""
        before = remembered(self.last_accumulation, plan.profiles.accumulation)
        return expected_memory(self.last_accumulation, plan.profiles, plan.cohort) / before

    @override
    def expect(self, plan: RoundPlan) -> None:
        self.last_accumulation = expected_memory(self.last_accumulation, plan.profiles, plan.cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        self.last_updates.replace(updates.clients, updates.deltas, plan.profiles.weights)
        self.last_accumulation[updates.clients] = plan.profiles.accumulation[updates.clients]
        return self.last_updates.total(plan.profiles.weights)
