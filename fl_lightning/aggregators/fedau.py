"""FedAU and Debiasing FedAvg: an arrival counts for the rounds in which its client did not arrive."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, Draw, arrival_rates, matching_coefficients, weighted_sum
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import BoolVector, Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class ParticipationIntervals(Aggregator):
    r"""Weighs a delivered update by the mean number of rounds between its client's arrivals (FedAU, Wang & Ji 2024).

    .. math:: X \leftarrow X - \eta \eta_g \sum_{m\ \mathrm{delivered}} w_m \hat{w}_m \Delta_m

    :math:`\hat{w}_m` is the mean length of the intervals that ended before this round, 1 before the first has ended. An
    interval ends when the client arrives or at the cutoff. Arrivals count once, however often a client was drawn: with
    multiplicities the rule is biased. Nothing need be known about p or q. In the long run :math:`\Omega \propto w A`,
    as long as clients arrive more often than once per cutoff: links are corrected, unequal work is not.

    Args:
        cutoff: Longest interval, in rounds.
        server_lr: Factor on the aggregate.
        calibrate: Report the true long-run step length, ``server_lr`` times sum w A, to the calibration. If not, it is
            given FedAvg's length, which leaves the base learning rate as it is (the FedACS paper's choice); the step is
            then longer than FedAvg's. Omega is reported truly in both cases.
    """

    traits = AggregatorTraits(only_sums=False, keeps="memory", counts_absent=True, absence="bounded")
    memory = ("elapsed", "num_intervals", "mean_interval")

    def __init__(self, cutoff: int = 50, server_lr: float = 1.0, calibrate: bool = False) -> None:
        if cutoff < 1:
            raise ValueError(f"cutoff={cutoff} must be at least 1 round")
        if not 0 < server_lr < float("inf"):
            raise ValueError(f"server_lr={server_lr} must be a positive number")
        self.cutoff = cutoff
        self.server_lr = server_lr
        self.calibrate = calibrate

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.elapsed = np.zeros(num_clients, dtype=np.int64)  # rounds since the last interval ended
        self.num_intervals = np.zeros(num_clients, dtype=np.int64)  # ended so far
        self.mean_interval = np.ones(num_clients)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return w / (p (1-q)), in the scale that ``calibrate`` decides."""
        coefficients = matching_coefficients(profiles.weights, profiles, cohort)
        if self.calibrate:
            return self.server_lr * coefficients
        amounts = profiles.weights * profiles.accumulation
        return coefficients * float(amounts @ (1 - profiles.failure_rates)) / float(amounts.sum())

    @override
    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector | None:
        r"""Return what the cutoff L takes from clients that arrive in a share r of the rounds where not all are there.

        .. math:: r \cdot \mathrm{E}[\min(G, L)] = 1 - (1 - r)^L, \qquad G \sim \mathrm{Geometric}(r)
        """
        if plan.profiles.conditions.presence is None:
            return None
        return np.asarray(-np.expm1(self.cutoff * np.log1p(-arrival_rates(plan) * (1 - 1e-12))))

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        factors = self.server_lr * plan.profiles.weights * self.mean_interval * (delivered > 0)
        direction = weighted_sum(factors[updates.clients], updates.deltas)
        self._count(delivered > 0)
        return direction

    def _count(self, arrived: BoolVector) -> None:
        elapsed = self.elapsed + 1
        ended = arrived | (elapsed >= self.cutoff)
        mean = (self.num_intervals * self.mean_interval + elapsed) / (self.num_intervals + 1)
        self.mean_interval = np.where(ended, mean, self.mean_interval)
        self.num_intervals = self.num_intervals + ended
        self.elapsed = np.where(ended, 0, elapsed)


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
