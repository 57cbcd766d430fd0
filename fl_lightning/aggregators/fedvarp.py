"""FedVARP: the server stands in for absent clients with what they sent last."""

from typing import Literal

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.base import (
    Aggregator,
    Draw,
    expected_memory,
    matching_coefficients,
    mean_accumulation,
    remembered,
    weighted_sum,
)
from fl_lightning.aggregators.client_rows import RowStorage, SummedRows
from fl_lightning.parts.checking import one_of
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector

Variant = Literal["original", "paper", "importance"]


class LastKnownUpdates(Aggregator):
    r"""Keeps the last delivered update y of every client and uses it for variance reduction (FedVARP, 2022).

    With S the distinct clients that arrive, and y from before the round unless said otherwise, the direction is

    .. math::
        \mathrm{original:} \quad & \sum_j w_j y_j + \frac{1}{|S|} \sum_{m \in S} (\Delta_m - y_m) \\
        \mathrm{importance:} \quad & \sum_j w_j y_j
            + \frac1K \sum_{m \in S} n_m \frac{w_m}{p_m (1-q_m)} (\Delta_m - y_m) \\
        \mathrm{paper:} \quad & \frac1K \sum_{m\ \mathrm{drawn}} n_m y_m, \quad y\ \mathrm{after\ the\ round}

    and then :math:`y_m \leftarrow \Delta_m` for the clients that arrived. The ``paper``'s form (that of the FedACS
    paper) replaces only lost uploads. All have :math:`\Omega \propto w A` once memory is filled and while conditions
    are stationary: links are corrected, unequal work is not. When nobody arrives, memory still moves the model. The
    memory takes the size of the model for each client that ever arrived.

    Args:
        variant: ``original``, ``paper`` or ``importance``.
        normalize_memory: Keep :math:`\Delta_m / A_m` instead, and multiply by the mean A of all clients. This makes
            :math:`\Omega = w`; it is a method of its own, not FedVARP.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    memory = ("last_updates", "last_accumulation")
    last_accumulation: Vector = np.empty(0)  # before a run has begun

    def __init__(
        self, variant: Variant = "original", normalize_memory: bool = False, storage: RowStorage | None = None
    ) -> None:
        one_of("variant", variant, Variant)
        self.variant = variant
        self.normalize_memory = normalize_memory
        self.storage = storage

    @property
    @override
    def traits(self) -> AggregatorTraits:
        """The paper's form looks up memory for those who are drawn alone."""
        return AggregatorTraits(only_sums=False, keeps="memory", counts_absent=self.variant != "paper")

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.last_updates = SummedRows(num_clients, weights, self.storage)
        self.last_accumulation = np.zeros(num_clients)  # 0 where nothing has arrived yet

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the factor in the long run; memory counts with the work of the rounds it comes from."""
        coefficients = matching_coefficients(self._amounts(profiles, cohort), profiles, cohort)
        if self.normalize_memory:
            return coefficients * mean_accumulation(profiles.weights, profiles.accumulation) / profiles.accumulation
        return coefficients

    def _amounts(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return how much of each client's update of this round is applied, (M,)."""
        drawn = cohort.probabilities * cohort.coefficients
        known = remembered(self.last_accumulation, profiles.accumulation) / profiles.accumulation
        if self.normalize_memory or self.variant == "importance":  # memory cancels, or has no work in it
            return drawn if self.variant == "paper" else profiles.weights
        if self.variant == "paper":
            return drawn * (1 - profiles.failure_rates * (1 - known))
        return profiles.weights * known

    @override
    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector | None:
        """Return what fresh updates add to memory: nothing on average, but a rate that follows T weighs them."""
        if self.normalize_memory or self.variant != "original":
            return None
        profiles = plan.profiles
        fresh = profiles.accumulation / remembered(self.last_accumulation, profiles.accumulation) - 1
        arriving = plan.cohort.inclusion * (1 - profiles.failure_rates)
        known = profiles.weights * max(1.0, float(arriving.sum()))
        return np.maximum(1 + fresh * np.divide(arriving, known, out=np.zeros_like(known), where=known > 0), 1e-6)

    @override
    def expect(self, plan: RoundPlan) -> None:
        self.last_accumulation = expected_memory(self.last_accumulation, plan.profiles, plan.cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        profiles = plan.profiles
        deltas = updates.deltas
        scale = 1.0
        if self.normalize_memory:
            scale = mean_accumulation(profiles.weights, profiles.accumulation)
            deltas = deltas / torch.from_numpy(profiles.accumulation[updates.clients]).to(deltas)[:, None]
        self.last_accumulation[updates.clients] = profiles.accumulation[updates.clients]
        if self.variant == "paper":
            self.last_updates.put(updates.clients, deltas)
            drawn, cohort = plan.cohort.clients, plan.cohort
            shares = cohort.counts[drawn] * cohort.coefficients[drawn] / cohort.num_draws
            return scale * weighted_sum(shares, self.last_updates[drawn])
        direction = self.last_updates.total(profiles.weights)
        if len(updates):
            before = self.last_updates[updates.clients]
            direction = direction + weighted_sum(self._shares(updates, delivered, plan), deltas - before)
        self.last_updates.replace(updates.clients, deltas, profiles.weights)
        return scale * direction

    def _shares(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> Vector:
        clients, cohort = updates.clients, plan.cohort
        if self.variant == "original":
            return (delivered[clients] > 0) / len(clients)
        amounts = matching_coefficients(plan.profiles.weights, plan.profiles, cohort)
        return delivered[clients] * amounts[clients] / cohort.num_draws
