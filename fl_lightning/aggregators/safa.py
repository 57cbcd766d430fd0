"""SAFA: the server averages the last model of every client; one that lags too far behind begins anew."""

from functools import partial

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import matching_coefficients, weighted_sum
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.aggregators.fedpbc import OwnModels
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


def exchanged(cache: ClientRows, clients: IntVector, models: torch.Tensor, weights: Vector) -> torch.Tensor:
    """Put models into a cache, and return what that takes off their weighted mean over all clients, (d,)."""
    before = cache[clients]
    return weighted_sum(weights[clients], before - cache.put(clients, models))


class LagTolerant(OwnModels):
    r"""Averages the cached models of all clients (SAFA, Wu et al. 2019).

    A client trains from :math:`x_m`, the global model of the round after it last arrived. Of the distinct clients S
    that arrive, and the deprecated D whose :math:`x_m` is older than the lag tolerance,

    .. math::
        y_m \leftarrow x_m - \eta \Delta_m\ (m \in S), \qquad y_m \leftarrow X, \; x_m \leftarrow X\ (m \in D), \qquad
        X \leftarrow \sum_j w_j y_j

    Links are corrected as far as a client arrives within the tolerance L: :math:`\Omega \propto w f A` with
    :math:`f_m = 1 - (1 - a_m)^{L+2}` and a the chance to arrive in a round; unequal work is not. Old models hold the
    mean back, by their mean age in rounds: that much shorter is the step. In the original all clients train in every
    round, and uploads beyond a quota wait in the cache for the next round; here all that arrive are taken.

    Args:
        lag_tolerance: L, in rounds.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models", counts_absent=True)
    memory = ("cache", "last_version")
    _renewed: IntVector = np.empty(0, dtype=np.int64)  # who was deprecated in the last round

    def __init__(self, lag_tolerance: int = 5, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if lag_tolerance < 0:
            raise ValueError(f"lag_tolerance={lag_tolerance} must be a number of rounds from 0 up")
        self.lag_tolerance = lag_tolerance

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.cache = ClientRows(num_clients, weights, self.storage)  # y
        self.cache.fill(weights)
        self.last_version = np.zeros(num_clients, dtype=np.int64)  # rounds after which x_m was the global model

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c of f w, and of the age of the models that are averaged."""
        arriving = np.maximum(cohort.inclusion * (1 - profiles.failure_rates), 1e-12)
        valid = 1 - (1 - arriving) ** (self.lag_tolerance + 2)
        age = float(profiles.weights @ np.minimum(2 / arriving - 1, self.lag_tolerance + 1))
        return matching_coefficients(profiles.weights * valid / age, profiles, cohort)

    @override
    def downloads(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return who arrived or is deprecated: nobody else gets the global model."""
        return np.union1d(super().downloads(plan, delivered), self._renewed)

    def _deprecated(self, plan: RoundPlan) -> IntVector:
        return np.flatnonzero(plan.index - 1 - self.last_version > self.lag_tolerance)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return Handout(start=partial(self._begin, set(self._deprecated(plan).tolist())))

    def _begin(self, deprecated: set[int], client: int, weights: torch.Tensor) -> torch.Tensor:
        return weights if client in deprecated else self._start(client, weights)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return what the exchanged models take off the mean."""
        late, shares = self._deprecated(plan), plan.profiles.weights
        self.synchronised[torch.from_numpy(late)] = True
        models = self.moved(np.ones(len(updates)), weights, updates, delivered, plan)
        self.last_version[late] = plan.index - 1
        self._renewed = late
        self.last_version[updates.clients] = plan.index
        late = np.setdiff1d(late, updates.clients)
        step = exchanged(self.cache, updates.clients, models, shares)
        return step + exchanged(self.cache, late, weights.expand(len(late), -1), shares)
