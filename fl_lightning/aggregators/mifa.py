"""MIFA: the mean of what every client sent last."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class MemorizedMean(Aggregator):
    r"""Steps along the weighted mean of the latest update of every client, however old (MIFA, Gu et al. 2021).

    .. math:: y_m \leftarrow \Delta_m\ \mathrm{for\ delivered}\ m, \qquad X \leftarrow X - \eta \sum_j w_j y_j

    :math:`\Omega \propto w A`, whatever the pattern of participation. A client that was never heard counts as zero (the
    original waits for all of them in its first round). When nobody arrives, memory still moves the model. The memory
    takes M times the size of the model.
    """

    memory = ("last_updates",)

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.last_updates = weights.new_zeros((num_clients, len(weights)))

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)): all of w is applied in each round."""
        return matching_coefficients(profiles.weights, profiles, cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        self.last_updates[torch.from_numpy(updates.clients)] = updates.deltas
        return weighted_sum(plan.profiles.weights, self.last_updates)
