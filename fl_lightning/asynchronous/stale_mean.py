"""FedAsync and FedBuff: uploads that began with older models."""

from functools import partial

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, weighted_sum
from fl_lightning.parts.protocols import PLAIN, Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Arrivals, Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class StaleMean(Aggregator):
    r"""Averages uploads that began with models of different age (FedBuff, Nguyen et al. 2022).

    .. math:: X \leftarrow X - \frac{\eta}{b} \sum_{m\ \mathrm{delivered}} n_m c_m s(\tau_m) \Delta_m, \qquad
        s(\tau) = (1 + \tau)^{-a}

    with :math:`\tau` the steps that the server made since the client got its model. With ``mixing`` the server moves
    towards the client's model instead (FedAsync, Xie et al. 2019), :math:`X \leftarrow X - \alpha s(\tau) (X - x_m)`,
    where what the client learned is taken at the calibrated length and the pull towards its old start with alpha.
    Needs :class:`AsynchronousSelection`. Models that somebody still trains on are kept. The reported Omega has the mean
    discount of each client's uploads in rounds that are tried out beforehand.

    Args:
        exponent: a; 0 treats old and new uploads alike.
        mixing: alpha, the weight of a client's model in the mixture; 0 adds updates and pulls nowhere.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models")
    memory = ("versions",)

    def __init__(self, exponent: float = 0.5, mixing: float = 0.0) -> None:
        if not 0 <= exponent < float("inf"):
            raise ValueError(f"exponent={exponent} must be a number from 0 up")
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing={mixing} must be between 0 and 1")
        self.exponent, self.mixing = exponent, mixing
        self.versions: dict[int, torch.Tensor] = {}  # models that jobs in flight began with, by number of rounds

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.versions = {}

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor times the mean discount of each client's uploads."""
        return cohort.coefficients * self._arrivals(cohort).mean_discount(self.exponent)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        """Return the models that the clients' jobs began with."""
        arrivals = plan.cohort.arrivals
        return PLAIN if arrivals is None else Handout(start=partial(self._start, arrivals))

    def _start(self, arrivals: Arrivals, client: int, weights: torch.Tensor) -> torch.Tensor:
        return self.versions.get(int(arrivals.started[client]), weights)

    def _arrivals(self, cohort: Cohort) -> Arrivals:
        if cohort.arrivals is None:
            raise ValueError("StaleMean needs uploads of known age: use it with AsynchronousSelection")
        return cohort.arrivals

    def _shares(self, clients: IntVector, delivered: IntVector, plan: RoundPlan) -> Vector:
        ages = plan.index - 1 - self._arrivals(plan.cohort).started[clients]
        discounts = (1.0 + ages) ** -self.exponent
        return np.asarray(delivered[clients] * plan.cohort.coefficients[clients] * discounts / plan.cohort.num_draws)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        return weighted_sum(self._shares(updates.clients, delivered, plan), updates.deltas)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        step = super().step(weights, updates, delivered, plan)
        arrivals = self._arrivals(plan.cohort)
        if self.mixing and len(updates):
            shares = self.mixing * self._shares(updates.clients, delivered, plan)
            starts = torch.stack([self._start(arrivals, client, weights) for client in updates.clients.tolist()])
            step = step + weighted_sum(shares, weights - starts)
        self.versions[plan.index - 1] = weights.clone()
        self.versions = {index: each for index, each in self.versions.items() if index >= arrivals.oldest}
        return step
