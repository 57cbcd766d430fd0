"""Planning a round: conditions, profiles, probabilities, calibrated rate, and last of all the draw."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fl_lightning import theory
from fl_lightning.algorithms import Algorithm, System, TargetWeights
from fl_lightning.parts.protocols import Probe
from fl_lightning.parts.traits import SamplerTraits, ScheduleTraits, traits_of_schedule
from fl_lightning.samplers.selection import Selection
from fl_lightning.seeding import Purpose, forecast_round, generator
from fl_lightning.system.traces import KINDS, read_numbers
from fl_lightning.types import Cohort, Conditions, Expectation, IntVector, Profiles, RoundPlan, Updates, Vector

_LOG = logging.getLogger("fl_lightning")
_FORECAST_ROUNDS, _FORECAST_VALUES = 256, 10_000_000
_MOST_ITERATIONS = 50  # until the calibrated rate is a fixed point


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Decides everything about a round that can be decided before training.

    The order is: the clients are asked once; p, c, A and the calibrated rate are found without drawing anybody; the
    draw comes last and once. The federated loop, the diagnosis, the toy and a loop of your own all plan with it.
    """

    algorithm: Algorithm
    system: System
    weights: Vector  # w, sums to 1, (M,)
    learning_rate: float  # eta_1, before calibration
    steps_per_epoch: IntVector  # of each client, for schedules that count passes over the data, (M,)
    seed: int = 0
    rounds: int | None = None  # R, which schedules of the learning rate look at; None: it stays as it is

    def start(self) -> None:
        """Let the sampling look at typical rounds; call it once, before the first round."""
        if self._schedule.learns and self.sampling_traits.needs_forecast:
            raise ValueError(
                "the sampler takes long-run means of q and work from a look at typical rounds before the first one, "
                f"but {type(self.system.schedule).__name__} learns them only later: use "
                "knowledge='instant', which follows what was learned"
            )
        self.algorithm.sampling.start(self.typical_profiles)
        solver = self.algorithm.solver
        if not solver.obstacle or solver.votes:
            return
        if self._depends_on_accumulation():
            raise ValueError(
                f"{solver.obstacle}, so it has no accumulation A, which this algorithm depends on: use a linear "
                f"optimizer, an algorithm that does not (fedavg), or votes=True of {type(solver).__name__}, which "
                "counts each client's votes in place of A"
            )
        _LOG.warning(f"{solver.obstacle}: training does not depend on A here, but step_length and chi2 count votes")

    def _depends_on_accumulation(self) -> bool:
        """Whether draws, coefficients or rates would be others with another A of each client."""
        algorithm = self.algorithm
        plain = algorithm.aggregator.traits.only_sums and not algorithm.uploads.steps
        if not plain or not self.sampling_traits.is_fixed or self.sampling_traits.asynchronous:
            return True
        profiles, offered = self.profiles(self.conditions(1)), None
        factors = np.linspace(1.0, 2.0, len(self.weights))
        if profiles.offered_accumulation is not None:
            offered = np.sqrt(profiles.offered_accumulation) * factors
        other = replace(profiles, accumulation=np.sqrt(profiles.accumulation) * factors, offered_accumulation=offered)
        plans = [self.undrawn(each) for each in (profiles, other)]
        found = [[*plan.cohort.probabilities, *plan.coefficients, algorithm.calibration.factor(plan)] for plan in plans]
        return not np.allclose(found[0], found[1], rtol=1e-9)

    @property
    def _schedule(self) -> ScheduleTraits:
        return traits_of_schedule(self.system.schedule)

    @cached_property
    def sampling_traits(self) -> SamplerTraits:
        """What others must know of the sampling."""
        return self.algorithm.sampling.traits

    def conditions(self, index: int, with_clock: bool = True) -> Conditions:
        """Return T and q of all clients in a round, and who can be drawn."""
        conditions = self.system.schedule.configure_conditions(index, self.steps_per_epoch, self.seed)
        limit, clock = self.step_limit, self.system.clock
        if limit is not None:
            steps = conditions.num_steps
            conditions = replace(conditions, num_steps=np.minimum(steps, limit), offered=steps)
        if not with_clock:
            return conditions
        traits = self.sampling_traits
        if traits.asynchronous and clock.is_set_up:
            conditions = replace(conditions, seconds=clock.between_jobs(index, conditions.num_steps))
            if clock.deadline is None:  # availability is in the seconds
                return conditions
        elif traits.needs_seconds and clock.is_set_up:
            # Who draws by it knows the usual time and not that of the round to come.
            conditions = replace(conditions, seconds=clock.times(index, conditions.num_steps, jitter=False)[1])
        return clock.seen(conditions, index) if clock.changes_conditions else conditions

    @cached_property
    def step_limit(self) -> int | None:
        r"""The most local steps that the server asks a client for; None: all that the client can take.

        ``auto`` is the harmonic mean of T over clients, by their weight, and typical rounds:

        .. math:: \Bigl(\sum_m w_m \mathrm{E}[1 / T_m]\Bigr)^{-1}
        """
        limit, schedule = self.algorithm.max_local_steps, self.system.schedule
        if limit != "auto":
            return limit
        if self._schedule.learns:
            raise ValueError(
                f"max_local_steps='auto' needs to know T before the first round, which {type(schedule).__name__} "
                "learns only later: give a number of local steps"
            )
        rounds = self._typical_rounds(self._schedule.period)
        offers = [schedule.configure_conditions(each, self.steps_per_epoch, self.seed) for each in rounds]
        means = [theory.harmonic_mean_steps(self.weights, each.num_steps) for each in offers]
        return max(1, round(len(means) / sum(1 / each for each in means)))

    def plan(self, index: int, conditions: Conditions | None = None, probe: Probe | None = None) -> RoundPlan:
        """Return the plan of a round.

        Args:
            index: Of the round, counted from 1.
            conditions: T and q; those of the schedule by default.
            probe: Answers a sampler's questions to the clients; needed only by samplers that ask.
        """
        sampling, rng = self.algorithm.sampling, self._draws(index)
        rate = self.base_rate(index)
        profiles = self.profiles(self.conditions(index) if conditions is None else conditions, rate)
        if isinstance(sampling, Selection):  # who may ask for other work, such as that of jobs that end in this round
            num_steps = sampling.arrange(profiles, index, self.seed)
            if num_steps is not profiles.num_steps:
                profiles = self.profiles(replace(profiles.conditions, num_steps=num_steps), rate)
        if self.sampling_traits.asks != "nothing":
            sampling.ask(profiles, probe, rng)
        plan = self.calibrated(self.undrawn(profiles, index, rate))
        cohort, expected = sampling.configure_cohort(plan.cohort, rng), plan.expected
        # What the step length leaves out, such as sums that fail.
        chances = self.algorithm.aggregator.objective_factors(
            plan, lambda rng: sampling.configure_cohort(plan.cohort, rng).counts
        )
        if chances is not None:
            expected = replace(expected, measured=chances if expected.measured is None else chances * expected.measured)
        return replace(plan, expected=expected, cohort=cohort, probed_steps=0 if probe is None else probe.num_steps)

    def unasked(self, index: int, conditions: Conditions) -> RoundPlan:
        """Return a plan in which nobody is drawn yet, for the questions that a sampler asks before the draw."""
        rate, zeros = self.base_rate(index), np.zeros(len(self.weights))
        nobody = Cohort(probabilities=zeros, coefficients=zeros, counts=zeros.astype(np.int64), num_draws=1)
        expected = Expectation(self.profiles(conditions, rate), zeros, zeros)
        return RoundPlan(index=index, expected=expected, cohort=nobody, learning_rate=rate)

    def calibrated(self, base: RoundPlan) -> RoundPlan:
        """Return an undrawn plan, made at the base learning rate, at its calibrated one.

        Where p and A depend on the rate (proximal solvers), the rate is a fixed point.
        """
        calibration, plan = self.algorithm.calibration, base
        for _ in range(_MOST_ITERATIONS):
            rate, scale = calibration(base, plan, self.typical_plans)
            if abs(rate - plan.learning_rate) <= 1e-12 * rate:
                break
            plan = self.at_rate(plan, rate)
            if plan.expected is base.expected:  # nothing depends on the rate
                break
        else:
            calibration.warn_unsettled(rate, _MOST_ITERATIONS)
        return plan if scale == 1.0 else replace(plan, server_scale=scale)

    def next_clients(self, index: int) -> IntVector:
        """Return who will be drawn in a later round, where this can be known already; else nobody.

        It can where the sampler asks and learns nothing: then the draw is a function of seed and round alone.
        """
        sampling, traits = self.algorithm.sampling, self.sampling_traits
        if self._schedule.learns or traits.asynchronous or not traits.is_fixed:
            return np.empty(0, dtype=np.int64)
        expected = sampling.expected_cohort(self.profiles(self.conditions(index), self.base_rate(index)))
        return sampling.configure_cohort(expected, self._draws(index)).clients

    def _draws(self, index: int) -> np.random.Generator:
        """Return the stream of a round's draws; in a private run it is secret, for privacy is amplified by that."""
        noise = self.algorithm.uploads.noise if self.algorithm.uploads.steps else None
        secret = None if noise is None else noise.draw_seed
        return generator(self.seed if secret is None else secret, Purpose.SAMPLING, index)

    def base_rate(self, index: int) -> float:
        """Return the learning rate of a round before calibration."""
        schedule = self.algorithm.lr_schedule
        factor = 1.0 if schedule is None or self.rounds is None else schedule.factor(index, self.rounds)
        rate = self.learning_rate * factor * self.algorithm.solver.round_factor(index)
        if not 0 < rate < float("inf"):
            raise ValueError(f"the learning rate of round {index} is {rate:g}: lr_schedule must stay above 0")
        return rate

    def profiles(self, conditions: Conditions, learning_rate: float | None = None) -> Profiles:
        """Return what the server may know about the clients, at a learning rate (the base rate by default).

        Where A does not depend on the rate it is always found at the base rate, which rounds it alike in all rounds.
        """
        solver, offered = self.algorithm.solver, conditions.offered
        rate = self.learning_rate
        if learning_rate is not None and solver.depends_on_learning_rate:
            rate = learning_rate
        return Profiles(
            conditions=conditions,
            weights=self.weights,
            accumulation=solver.accumulation(conditions.num_steps, rate),
            offered_accumulation=None if offered is None else solver.accumulation(offered, rate),
        )

    def reported(self, plan: RoundPlan, updates: Updates) -> RoundPlan:
        """Return the plan of a round with the work that clients report where it is not what they were asked for.

        Their T, A and c are those of what they did; p and the learning rate stay, which were decided before.
        """
        planned = plan.profiles.num_steps
        if np.array_equal(updates.num_steps, planned[updates.clients]):
            return plan
        num_steps = planned.copy()
        num_steps[updates.clients] = updates.num_steps
        profiles = self.profiles(replace(plan.profiles.conditions, num_steps=num_steps), plan.learning_rate)
        coefficients = self._coefficients(profiles, plan.cohort)
        return replace(plan, expected=replace(plan.expected, profiles=profiles, coefficients=coefficients))

    def _coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return c; where absence shortens the step, an aggregator must not look at who is there (FedNova's tau)."""
        usual = cohort if cohort.average is None else cohort.average
        return cohort.there * self.algorithm.aggregator.coefficients(profiles, usual)

    def undrawn(self, profiles: Profiles, index: int = 0, learning_rate: float | None = None) -> RoundPlan:
        """Return the plan of a round before calibration and draw."""
        algorithm, uploads = self.algorithm, self.algorithm.uploads
        cohort = algorithm.sampling.expected_cohort(profiles)
        factors = uploads.factors(profiles) if uploads.steps else None
        if self.system.clock.take_first is not None:
            first = self.system.clock.first_factors(profiles, cohort, index)
            factors = first if factors is None or first is None else factors * first
        expected = Expectation(
            profiles,
            cohort.probabilities,
            self._coefficients(profiles, cohort),
            factors,
            uploads.measured_factors() if uploads.steps else None,
        )
        # On average over who can be drawn, where a round is no more than a part of it: absence shortens the step, or
        # memory or control variates stand for those who are away.
        usual = cohort.average
        if usual is None and profiles.available is not None and algorithm.aggregator.traits.counts_absent:
            presence = profiles.conditions.presence
            ever = None if presence is None or presence.all() else presence > 0
            everybody = replace(profiles, conditions=replace(profiles.conditions, available=ever))
            usual = algorithm.sampling.expected_cohort(everybody)
        if usual is not None:
            coefficients = algorithm.aggregator.coefficients(profiles, usual)
            average = replace(expected, probabilities=usual.probabilities, coefficients=coefficients)
            expected = replace(expected, average=average)
        if cohort.nominal is not None:
            coefficients = self._coefficients(profiles, cohort.nominal)
            nominal = replace(expected, probabilities=cohort.nominal.probabilities, coefficients=coefficients)
            expected = replace(expected, nominal=nominal)
        rate = self.learning_rate if learning_rate is None else learning_rate
        return RoundPlan(index=index, expected=expected, cohort=cohort, learning_rate=rate)

    def at_rate(self, plan: RoundPlan, learning_rate: float) -> RoundPlan:
        """Return an undrawn plan at another rate; p, c and A are worked out again only where they depend on it."""
        if not self.algorithm.solver.depends_on_learning_rate:
            return replace(plan, learning_rate=learning_rate)
        profiles = self.profiles(plan.profiles.conditions, learning_rate)
        return self.undrawn(profiles, plan.index, learning_rate)

    def typical_profiles(self, with_clock: bool = True) -> Iterator[Profiles]:
        """Yield the profiles of rounds that will not be played: one period of a schedule that repeats itself."""
        clock = self.system.clock
        varies = with_clock and (clock.varies or (self.sampling_traits.asynchronous and clock.changes_pace))
        for index in self._typical_rounds(None if varies else self._schedule.period):
            yield self.profiles(self.conditions(index, with_clock))

    def raw_profiles(self) -> Iterator[Profiles]:
        """Yield typical profiles as the schedule alone gives them, without the clock."""
        return self.typical_profiles(with_clock=False)

    def _typical_rounds(self, period: int | None) -> Iterator[int]:
        most = max(16, min(_FORECAST_ROUNDS, _FORECAST_VALUES // len(self.weights)))
        if period is None:
            return map(forecast_round, range(1, most + 1))
        return map(int, np.unique(np.linspace(1, period, min(period, most)).round()))

    def typical_plans(self, learning_rate: float) -> Iterator[RoundPlan]:
        """Yield undrawn plans of typical rounds at a learning rate."""
        for profiles in self.typical_profiles():
            yield self.at_rate(self.undrawn(profiles), learning_rate)


def target_weights(weights: TargetWeights, sizes: IntVector) -> Vector:
    """Return w, summing to 1.

    >>> target_weights("size", np.array([1, 3])).tolist(), target_weights("uniform", np.array([1, 3])).tolist()
    ([0.25, 0.75], [0.5, 0.5])
    """
    if weights in ("size", "uniform"):
        values = sizes.astype(np.float64) if weights == "size" else np.ones(len(sizes))
    else:
        if isinstance(weights, str) and not weights.endswith(KINDS):
            raise ValueError(
                f"weights={weights!r} is unknown: use 'size', 'uniform', a list of numbers, or a file of them"
            )
        values = read_numbers(weights) if isinstance(weights, str) else np.asarray(weights, dtype=np.float64)
        if values.shape != sizes.shape:
            raise ValueError(f"weights has {len(values)} entries, but there are {len(sizes)} clients")
        if not (np.isfinite(values).all() and (values >= 0).all() and (values > 0).any()):
            raise ValueError("weights must be finite numbers >= 0 with a positive sum")
        if not 1e-290 < values.max() < 1e300 / len(values):
            values = values / values.max()  # whose sum is a number, and whose shares have all their digits
    return values / values.sum()
