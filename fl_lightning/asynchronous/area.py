"""AREA: the model is the mean of the last models of all clients, however often each of them sends one."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import matching_coefficients
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.aggregators.safa import exchanged
from fl_lightning.asynchronous.stale_mean import OlderStarts
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class ExactAveraging(OlderStarts):
    r"""Adds what a client's model differs from the one it sent before (AREA, Iakovidou & Kim 2024).

    With :math:`x_m` the model that a job began with, of the distinct clients S in a buffer

    .. math:: X \leftarrow X + \sum_{m \in S} w_m (x_m - \eta \Delta_m - y_m), \qquad y_m \leftarrow x_m - \eta \Delta_m

    from :math:`y_m = X` at the start, so that :math:`X = \sum_j w_j y_j` always: who sends often replaces what it sent.
    Arrival rates and links drop out, :math:`\Omega \propto w A`; work does not. A client takes over :math:`y_m` when
    its upload is acknowledged. Old models hold the mean back, by their mean age in rounds: that much shorter is the
    step, which the calibration makes up for. Read from the abstract and an implementation by others.

    Needs :class:`AsynchronousSelection`.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client vectors", counts_absent=True)
    memory = ("cache",)

    def __init__(self, storage: RowStorage | None = None) -> None:
        super().__init__()
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.cache = ClientRows(num_clients, weights, self.storage)  # y
        self.cache.fill(weights)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c of w over the mean age of the models that are averaged."""
        lost, uploads = profiles.failure_rates, np.maximum(cohort.num_draws * cohort.probabilities, 1e-12)
        kept = (1 + lost) / (2 * np.maximum(1 - lost, 1e-12) * uploads) - 0.5  # rounds since it arrived
        age = float(profiles.weights @ (1 + self.arrivals(cohort).expected + np.maximum(kept, 0)))
        return matching_coefficients(profiles.weights / age, profiles, cohort)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return what the exchanged models take off the mean."""
        arrivals = self.arrivals(plan.cohort)
        starts = [self.start(arrivals, client, weights) for client in updates.clients.tolist()]
        self.keep(weights, plan)
        if not starts:
            return torch.zeros_like(weights)
        models = torch.stack(starts) - plan.learning_rate * plan.server_scale * updates.deltas
        return exchanged(self.cache, updates.clients, models, plan.profiles.weights)
