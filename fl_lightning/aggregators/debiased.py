"""Debiasing FedAvg: an arrival counts by the inverse of how often its client has arrived so far."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class EstimatedParticipation(Aggregator):
    r"""Divides an update by its client's estimated participation (Debiasing FedAvg, Sun et al. 2025).

    .. math:: X \leftarrow X - \eta \sum_{m\ \mathrm{delivered}} \frac{w_m}{\hat\pi_m} \Delta_m, \qquad
        \hat\pi_m = \frac{\lambda_m}{t}

    with :math:`\lambda_m` the rounds in which m arrived, this one included, of the t so far; for independent rounds E
    of its weight in round t is :math:`w_m (1 - (1-\pi_m)^t)`. A client that was drawn twice counts once, because the
    rounds are counted: with multiplicities the rule is biased. In the long run :math:`\Omega \propto w A`, for
    correlated rounds too (:class:`fl_lightning.samplers.Separated`): links are corrected, unequal work is not. Nothing
    need be known about p or q. Where participation drifts, the mean over all rounds follows too slowly; FedAU has a
    cutoff for that. The paper scales the local steps and not the update, which is the same for short steps.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True)
    memory = ("num_rounds", "num_arrivals")
    num_rounds: int = 0  # t

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.num_rounds = 0
        self.num_arrivals = np.zeros(num_clients, dtype=np.int64)  # lambda

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)): all of w is applied in each round, on average."""
        return matching_coefficients(profiles.weights, profiles, cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        self.num_rounds += 1
        self.num_arrivals = self.num_arrivals + (delivered > 0)
        clients = updates.clients
        shares = (delivered[clients] > 0) * plan.profiles.weights[clients] * self.num_rounds
        return weighted_sum(shares / np.maximum(self.num_arrivals[clients], 1), updates.deltas)
