"""FedVARP, FedStale, MIFA: the server stands in for absent clients with what they sent last."""

from typing import ClassVar, Literal

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import (
    Aggregator,
    Draw,
    arrival_rates,
    delivered_shares,
    matching_coefficients,
    mean_accumulation,
    mean_gradients,
    weighted_sum,
)
from fl_lightning.aggregators.client_rows import RowStorage, SummedRows
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector

Variant = Literal["original", "paper", "importance"]


class RemembersUpdates(Aggregator):
    """Keeps the last delivered update y of every client, and A of the round in which it was made.

    Override :meth:`direction`. The memory takes the size of the model for each client that ever arrived.
    """

    memory: ClassVar[tuple[str, ...]] = ("last_updates", "last_accumulation")
    last_accumulation: Vector = np.empty(0)  # before a run has begun

    def __init__(self, storage: RowStorage | None = None) -> None:
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.last_updates = SummedRows(num_clients, weights, self.storage)
        self.last_accumulation = np.zeros(num_clients)  # 0 where nothing has arrived yet

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)): all of w is applied in each round, or as much as that on average."""
        return matching_coefficients(profiles.weights, profiles, cohort)

    @override
    def expect(self, plan: RoundPlan) -> None:
        self.last_accumulation = self.expected_work(plan)

    def held_work(self, profiles: Profiles) -> Vector:
        """Return A of the update that memory holds, (M,)."""
        return remembered(self.last_accumulation, profiles.accumulation)

    def expected_work(self, plan: RoundPlan) -> Vector:
        """Return A of the update that memory holds after a round, on average, (M,)."""
        before = self.held_work(plan.profiles)
        return before + arrival_rates(plan) * (plan.profiles.accumulation - before)

    def remember(self, updates: Updates, rows: torch.Tensor, profiles: Profiles) -> None:
        """Replace what memory holds of the clients that arrived."""
        self.last_updates.replace(updates.clients, rows, profiles.weights)
        self.last_accumulation[updates.clients] = profiles.accumulation[updates.clients]

    def corrected(
        self, shares: Vector, updates: Updates, rows: torch.Tensor, profiles: Profiles, beta: float = 1.0
    ) -> torch.Tensor:
        r"""Return :math:`\beta \sum_j w_j y_j + \sum_m s_m (\Delta_m - \beta y_m)`, and remember the rows, (d,)."""
        known = not self.last_updates.are_zeros(updates.clients)
        fresh = rows - beta * self.last_updates[updates.clients] if known else rows
        direction = beta * self.last_updates.total(profiles.weights) + weighted_sum(shares, fresh)
        self.remember(updates, rows, profiles)
        return direction


def remembered(known: Vector, accumulation: Vector) -> Vector:
    """Return A of the update that memory holds; that of this round where nothing has arrived yet, (M,).

    >>> remembered(np.array([0.0, 6.0]), np.array([4.0, 4.0])).tolist()
    [4.0, 6.0]
    """
    return np.where(known > 0, known, accumulation) if len(known) else accumulation


class LastKnownUpdates(RemembersUpdates):
    r"""Keeps the last delivered update y of every client and uses it for variance reduction (FedVARP, 2022).

    With S the distinct clients that arrive, and y from before the round unless said otherwise, the direction is

    .. math::
        \mathrm{original:} \quad & \sum_j w_j y_j + \frac{1}{|S|} \sum_{m \in S} (\Delta_m - y_m) \\
        \mathrm{importance:} \quad & \sum_j w_j y_j
            + \frac1K \sum_{m \in S} n_m \frac{w_m}{p_m (1-q_m)} (\Delta_m - y_m) \\
        \mathrm{paper:} \quad & \frac1K \sum_{m\ \mathrm{drawn}} n_m y_m, \quad y\ \mathrm{after\ the\ round}

    and then :math:`y_m \leftarrow \Delta_m` for the clients that arrived. The ``paper``'s form (that of the FedACS
    paper) replaces only lost uploads. All have :math:`\Omega \propto w A` once memory is filled and while conditions
    are stationary: links are corrected, unequal work is not. When nobody arrives, memory still moves the model.

    Args:
        variant: ``original``, ``paper`` or ``importance``.
        normalize_memory: Keep :math:`\Delta_m / A_m` instead, and multiply by the mean A of all clients. This makes
            :math:`\Omega = w`; it is a method of its own, not FedVARP.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    def __init__(
        self, variant: Variant = "original", normalize_memory: bool = False, storage: RowStorage | None = None
    ) -> None:
        super().__init__(storage)
        one_of("variant", variant, Variant)
        self.variant = variant
        self.normalize_memory = normalize_memory

    @property
    @override
    def traits(self) -> AggregatorTraits:
        """The paper's form looks up memory for those who are drawn alone."""
        return AggregatorTraits(only_sums=False, keeps="memory", counts_absent=self.variant != "paper")

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
        known = self.held_work(profiles) / profiles.accumulation
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
        fresh = profiles.accumulation / self.held_work(profiles) - 1
        arriving = plan.cohort.inclusion * (1 - profiles.failure_rates)
        known = profiles.weights * max(1.0, float(arriving.sum()))
        return np.maximum(1 + fresh * np.divide(arriving, known, out=np.zeros_like(known), where=known > 0), 1e-6)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        profiles, cohort = plan.profiles, plan.cohort
        scale = mean_accumulation(profiles.weights, profiles.accumulation) if self.normalize_memory else 1.0
        rows = mean_gradients(updates, profiles) if self.normalize_memory else updates.deltas
        if self.variant == "paper":
            self.remember(updates, rows, profiles)
            shares = cohort.counts[cohort.clients] * cohort.coefficients[cohort.clients] / cohort.num_draws
            return scale * weighted_sum(shares, self.last_updates[cohort.clients])
        if self.variant == "original":
            shares = (delivered[updates.clients] > 0) / len(updates.clients)
        else:
            amounts = matching_coefficients(profiles.weights, profiles, cohort)
            shares = delivered_shares(amounts, updates, delivered, plan)
        return scale * self.corrected(shares, updates, rows, profiles)


class StaleMixture(RemembersUpdates):
    r"""Mixes fresh and remembered updates by a constant beta (FedStale, Rodio & Neglia 2024).

    .. math::
        \beta \sum_j w_j y_j
        + \frac1K \sum_{m\ \mathrm{delivered}} n_m \frac{w_m}{p_m (1-q_m)} (\Delta_m - \beta y_m)

    is the direction, and then :math:`y_m \leftarrow \Delta_m` for the clients that arrived. beta = 0 is c-a-FedAvg,
    beta = 1 FedVARP in its ``importance`` form; :math:`\Omega \propto w A` for all.

    Args:
        beta: How much memory counts, from 0 to 1.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True)

    def __init__(self, beta: float = 0.5, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if not 0 <= beta <= 1:
            raise ValueError(f"beta={beta} must be between 0 and 1")
        self.beta = beta

    @override
    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector | None:
        """Return beta + (1 - beta) a: fresh updates come in a share a of the rounds, memory stands for the others."""
        presence = plan.profiles.conditions.presence
        return None if presence is None else np.maximum(self.beta + (1 - self.beta) * presence, 1e-9)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        shares = delivered_shares(plan.coefficients, updates, delivered, plan)
        return self.corrected(shares, updates, updates.deltas, plan.profiles, self.beta)


class MemorizedMean(RemembersUpdates):
    r"""Steps along the weighted mean of the latest update of every client, however old (MIFA, Gu et al. 2021).

    .. math:: y_m \leftarrow \Delta_m\ \mathrm{for\ delivered}\ m, \qquad X \leftarrow X - \eta \sum_j w_j y_j

    :math:`\Omega \propto w A`, whatever the pattern of participation, with A of the round in which the remembered
    update was made. A client that never arrived counts as zero (the original waits for all of them in its first round).
    When nobody arrives, memory still moves the model.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)) for the work that memory holds: all of w is applied in each round."""
        amounts = profiles.weights * self.held_work(profiles) / profiles.accumulation
        return matching_coefficients(amounts, profiles, cohort)

    @override
    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector:
        """Return work that memory will hold after the round over what it holds before."""
        return self.expected_work(plan) / self.held_work(plan.profiles)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        self.remember(updates, updates.deltas, plan.profiles)
        return self.last_updates.total(plan.profiles.weights)


class RecentMean(MemorizedMean):
    r"""Is MIFA without the updates that are too old (ACED, Chang et al. 2025, on uploads of clients that do not wait).

    .. math:: X \leftarrow X - \eta \frac{\sum_{j \in F} w_j y_j}{\sum_{j \in F} w_j}, \qquad
        F = \{j : t - 1 - v_j \le D\}

    with :math:`v_j` the rounds after which the model was made that :math:`y_j` began with. Who arrives rarely is in F
    for a part of the time :math:`f_j` only, and :math:`\Omega \propto w f A`; the reported f takes clients for
    independent and their jobs for equally long. Read from the abstract and public reviews of the paper.

    Args:
        max_age: D, in rounds.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True, effect="bounded")
    memory = ("versions",)

    def __init__(self, max_age: int = 30, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if max_age < 0:
            raise ValueError(f"max_age={max_age} must be a number of rounds from 0 up")
        self.max_age = max_age

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.versions = np.full(num_clients, -1, dtype=np.int64)  # v; -1 before the first upload

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return MIFA's c times the share of the rounds in which an update is young enough."""
        lost, turns, arrivals = (
            profiles.failure_rates,
            np.full(profiles.num_clients, self.max_age + 1.0),
            cohort.arrivals,
        )
        if arrivals is None:  # a turn is a round, in which a client may not be drawn
            lost = 1 - cohort.inclusion * (1 - lost)
        else:  # a turn is a job, and an upload is old already when it comes
            turns = np.maximum(turns - arrivals.expected, 0) * cohort.num_draws * cohort.probabilities
        whole = np.floor(turns)
        recent = 1 - lost**whole + (1 - lost) * lost**whole * (turns - whole)
        return super().coefficients(profiles, cohort) * recent / max(float(profiles.weights @ recent), 1e-12)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        arrivals, weights, clients = plan.cohort.arrivals, plan.profiles.weights, updates.clients
        total = super().direction(updates, delivered, plan)
        self.versions[clients] = plan.index - 1 if arrivals is None else arrivals.started[clients]
        known = self.versions >= 0
        old = np.flatnonzero(known & (plan.index - 1 - self.versions > self.max_age))
        share = float(weights[known].sum() - weights[old].sum())
        if not share > 0:
            return torch.zeros_like(total)
        return (total - weighted_sum(weights[old], self.last_updates[old])) / share
