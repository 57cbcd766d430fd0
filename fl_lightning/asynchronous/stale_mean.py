"""FedAsync and FedBuff: uploads that began with older models."""

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, weighted_sum
from fl_lightning.parts.protocols import PLAIN, Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Arrivals, Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class OlderStarts(Aggregator):
    """Hands out the models with which the clients' jobs began, and keeps those that somebody still trains on.

    Override :meth:`direction`, and :meth:`coefficients` where it depends on the age of uploads. Needs
    :class:`AsynchronousSelection`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models")
    memory: ClassVar[tuple[str, ...]] = ("versions",)

    def __init__(self) -> None:
        self.versions: dict[int, torch.Tensor] = {}  # models that jobs in flight began with, by number of rounds

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.versions = {}

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        arrivals = plan.cohort.arrivals
        return PLAIN if arrivals is None else Handout(start=partial(self.start, arrivals))

    def start(self, arrivals: Arrivals, client: int, weights: torch.Tensor) -> torch.Tensor:
        """Return the model with which a client's job began, (d,)."""
        return self.versions.get(int(arrivals.started[client]), weights).to(weights)  # from main memory, when resumed

    def arrivals(self, cohort: Cohort) -> Arrivals:
        """Return what is known of the uploads' age."""
        if cohort.arrivals is None:
            raise ValueError(f"{type(self).__name__} needs uploads of known age: use it with AsynchronousSelection")
        return cohort.arrivals

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        step = super().step(weights, updates, delivered, plan)
        oldest = self.arrivals(plan.cohort).oldest
        self.versions[plan.index - 1] = weights.clone()
        self.versions = {index: each for index, each in self.versions.items() if index >= oldest}
        return step


class StaleMean(OlderStarts):
    r"""Averages uploads that began with models of different age (FedBuff, Nguyen et al. 2022).

    .. math:: X \leftarrow X - \frac{\eta}{b} \sum_{m\ \mathrm{delivered}} n_m c_m s(\tau_m) \Delta_m, \qquad
        s(\tau) = (1 + \tau)^{-a}

    with :math:`\tau` the steps that the server made since the client got its model. With ``mixing`` the server moves
    towards the client's model instead (FedAsync, Xie et al. 2019), :math:`X \leftarrow X - \alpha s(\tau) (X - x_m)`,
    where what the client learned is taken at the calibrated length and the pull towards its old start with alpha.
    Needs :class:`AsynchronousSelection`. The reported Omega has the mean discount of each client's uploads in rounds
    that are tried out beforehand.

    Args:
        exponent: a; 0 treats old and new uploads alike.
        mixing: alpha, the weight of a client's model in the mixture; 0 adds updates and pulls nowhere.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models")

    def __init__(self, exponent: float = 0.5, mixing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= exponent < float("inf"):
            raise ValueError(f"exponent={exponent} must be a number from 0 up")
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing={mixing} must be between 0 and 1")
        self.exponent, self.mixing = exponent, mixing

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor times the mean discount of each client's uploads."""
        return cohort.coefficients * self.arrivals(cohort).mean_discount(self.exponent)

    def _shares(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> Vector:
        ages = plan.index - 1 - self.arrivals(plan.cohort).started
        shares = delivered * plan.cohort.coefficients * (1.0 + ages) ** -self.exponent / plan.cohort.num_draws
        return np.asarray(shares[updates.clients])

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        return weighted_sum(self._shares(updates, delivered, plan), updates.deltas)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        arrivals = self.arrivals(plan.cohort)
        starts = [self.start(arrivals, client, weights) for client in updates.clients.tolist()]
        step = super().step(weights, updates, delivered, plan)
        if not self.mixing or not starts:
            return step
        return step + weighted_sum(self.mixing * self._shares(updates, delivered, plan), weights - torch.stack(starts))
