"""Planning a round: conditions, profiles, probabilities, calibrated rate, and last of all the draw."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fl_lightning import theory
from fl_lightning.aggregators import Aggregator
from fl_lightning.parts.protocols import Probe, Sampling, Schedule
from fl_lightning.samplers.base import Sampler
from fl_lightning.seeding import Purpose, forecast_round, generator
from fl_lightning.server.calibration import Calibration
from fl_lightning.solvers import Solver
from fl_lightning.system.clock import Clock
from fl_lightning.system.traces import KINDS, read_numbers
from fl_lightning.types import Cohort, Conditions, Expectation, IntVector, Profiles, RoundPlan, Updates, Vector
from fl_lightning.uploads import Uploads

_FORECAST_ROUNDS, _FORECAST_VALUES = 256, 10_000_000
StepLimit = int | Literal["auto"] | None


def constant_rate(index: int) -> float:
    """Return 1: the base rate in each round."""
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Decides everything about a round that can be decided before training.

    The order is: the clients are asked once; p, c, A and the calibrated rate are found without drawing anybody; the
    draw comes last and once. The federated loop, the diagnosis, the toy and a loop of your own all plan with it.
    """

    schedule: Schedule
    sampling: Sampling
    aggregator: Aggregator
    solver: Solver
    calibration: Calibration
    weights: Vector  # w, sums to 1, (M,)
    learning_rate: float  # eta_1, before calibration
    steps_per_epoch: IntVector  # of each client, for schedules that count passes over the data, (M,)
    seed: int = 0
    uploads: Uploads = field(default_factory=Uploads)
    clock: Clock | None = None  # how long clients take; None: nobody is late, everybody can be drawn
    rate_factor: Callable[[int], float] = constant_rate  # of a round, on the base rate, before calibration
    max_local_steps: StepLimit = None  # the server asks nobody for more; see step_limit

    def start(self) -> None:
        """Let the sampling look at typical rounds; call it once, before the first round."""
        sampler = getattr(self.sampling, "sampler", None)
        if self._learns and isinstance(sampler, Sampler) and sampler.relies_on_forecast:
            raise ValueError(
                f"{type(sampler).__name__} takes long-run means of q and work from a look at typical rounds before the "
                f"first one, but {type(self.schedule).__name__} learns them only later: use knowledge='instant', which "
                "follows what was learned"
            )
        self.sampling.start(self.typical_profiles)

    @property
    def _learns(self) -> bool:
        """Whether the schedule finds out about T and q during the run."""
        return bool(getattr(self.schedule, "state_dict", dict)())

    def conditions(self, index: int) -> Conditions:
        """Return T and q of all clients in a round, and who can be drawn."""
        conditions = self._limited(self.schedule.configure_conditions(index, self.steps_per_epoch, self.seed))
        if self.clock is None:
            return conditions
        if getattr(self.sampling, "uses_seconds", False):
            conditions = replace(conditions, seconds=self.clock.times(index, conditions.num_steps)[1])
        return self.clock.seen(conditions, index)

    @cached_property
    def step_limit(self) -> int | None:
        r"""The most local steps that the server asks a client for; None: all that the client can take.

        ``auto`` is the harmonic mean of T over clients, by their weight, and typical rounds:

        .. math:: \Bigl(\sum_m w_m \mathrm{E}[1 / T_m]\Bigr)^{-1}
        """
        if self.max_local_steps != "auto":
            return self.max_local_steps
        if self._learns:
            raise ValueError(
                f"max_local_steps='auto' needs to know T before the first round, which {type(self.schedule).__name__} "
                "learns only later: give a number of local steps"
            )
        rounds = [theory.harmonic_mean_steps(self.weights, each.num_steps) for each in self._typical_offers()]
        return max(1, round(len(rounds) / sum(1 / each for each in rounds)))

    def _limited(self, conditions: Conditions) -> Conditions:
        """Return the conditions with the steps that the server asks for."""
        limit = self.step_limit
        if limit is None:
            return conditions
        return replace(conditions, num_steps=np.minimum(conditions.num_steps, limit), offered=conditions.num_steps)

    def plan(self, index: int, conditions: Conditions | None = None, probe: Probe | None = None) -> RoundPlan:
        """Return the plan of a round.

        Args:
            index: Of the round, counted from 1.
            conditions: T and q; those of the schedule by default.
            probe: Answers a sampler's questions to the clients; needed only by samplers that ask.
        """
        rng, rate = generator(self.seed, Purpose.SAMPLING, index), self.base_rate(index)
        conditions = self.conditions(index) if conditions is None else conditions
        profiles = self.profiles(conditions, rate)
        arrange = getattr(self.sampling, "arrange", None)
        if arrange is not None:  # whose jobs end in this round, with the work that they began with
            profiles = self.profiles(replace(conditions, num_steps=arrange(profiles, index, self.seed)), rate)
        self.sampling.ask(profiles, probe, rng)
        plan = self.calibration(self.undrawn(profiles, index, rate), self)
        cohort = self.sampling.configure_cohort(plan.cohort, rng)
        return replace(plan, cohort=cohort, probed_steps=0 if probe is None else probe.num_steps)

    def next_clients(self, index: int) -> IntVector:
        """Return who will be drawn in a later round, where this can be told already; else nobody.

        It can where the sampler asks and learns nothing: then the draw is a function of seed and round alone.
        """
        sampler = getattr(self.sampling, "sampler", None)
        if self._learns or not isinstance(sampler, Sampler) or not sampler.is_fixed:
            return np.empty(0, dtype=np.int64)
        expected = self.sampling.expected_cohort(self.profiles(self.conditions(index), self.base_rate(index)))
        return self.sampling.configure_cohort(expected, generator(self.seed, Purpose.SAMPLING, index)).clients

    def base_rate(self, index: int) -> float:
        """Return the learning rate of a round before calibration."""
        rate = self.learning_rate * self.rate_factor(index) * self.solver.round_factor(index)
        if not 0 < rate < float("inf"):
            raise ValueError(f"the learning rate of round {index} is {rate:g}: lr_schedule must stay above 0")
        return rate

    def profiles(self, conditions: Conditions, learning_rate: float | None = None) -> Profiles:
        """Return what the server may know about the clients, at a learning rate (the base rate by default).

        Where A does not depend on the rate it is always found at the base rate, which rounds it alike in all rounds.
        """
        rate = self.learning_rate
        if learning_rate is not None and self.solver.depends_on_learning_rate:
            rate = learning_rate
        offered = conditions.offered
        return Profiles(
            weights=self.weights,
            num_steps=conditions.num_steps,
            failure_rates=conditions.failure_rates,
            accumulation=self.solver.accumulation(conditions.num_steps, rate),
            available=conditions.available,
            link_rates=conditions.link_rates,
            presence=conditions.presence,
            seconds=conditions.seconds,
            offered=offered,
            offered_accumulation=None if offered is None else self.solver.accumulation(offered, rate),
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
        kept = {each.name: getattr(plan.profiles, each.name) for each in fields(Conditions)} | {"num_steps": num_steps}
        profiles = self.profiles(Conditions(**kept), plan.learning_rate)
        coefficients = self.aggregator.coefficients(profiles, plan.cohort)
        return replace(plan, expected=replace(plan.expected, profiles=profiles, coefficients=coefficients))

    def undrawn(self, profiles: Profiles, index: int = 0, learning_rate: float | None = None) -> RoundPlan:
        """Return the plan of a round before calibration and draw."""
        cohort = self.sampling.expected_cohort(profiles)
        expected = Expectation(
            profiles,
            cohort.probabilities,
            self.aggregator.coefficients(profiles, cohort),
            self._factors(profiles, cohort, index),
            self.uploads.measured_factors(),
        )
        rate = self.learning_rate if learning_rate is None else learning_rate
        return RoundPlan(index=index, expected=expected, cohort=cohort, learning_rate=rate)

    def _factors(self, profiles: Profiles, cohort: Cohort, index: int) -> Vector | None:
        """Return the expected factor of all that happens between a client and the aggregator; None where it is 1."""
        uploaded = self.uploads.factors(profiles)
        first = None if self.clock is None else self.clock.first_factors(profiles, cohort, index)
        return uploaded if first is None else first if uploaded is None else uploaded * first

    def at_rate(self, plan: RoundPlan, learning_rate: float) -> RoundPlan:
        """Return an undrawn plan at another rate; p, c and A are worked out again only where they depend on it."""
        if not self.solver.depends_on_learning_rate:
            return replace(plan, learning_rate=learning_rate)
        old = plan.profiles
        kept = {each.name: getattr(old, each.name) for each in fields(Conditions)}
        return self.undrawn(self.profiles(Conditions(**kept), learning_rate), plan.index, learning_rate)

    def typical_profiles(self) -> Iterator[Profiles]:
        """Yield the profiles of rounds that will not be played: one period of a schedule that repeats itself."""
        varies = self.clock is not None and self.clock.varies
        for index in self._typical_rounds(None if varies else getattr(self.schedule, "period", None)):
            yield self.profiles(self.conditions(index))

    def _typical_rounds(self, period: int | None) -> Iterator[int]:
        most = max(16, min(_FORECAST_ROUNDS, _FORECAST_VALUES // len(self.weights)))
        if period is None:
            return map(forecast_round, range(1, most + 1))
        return map(int, np.unique(np.linspace(1, period, min(period, most)).round()))

    def _typical_offers(self) -> Iterator[Conditions]:
        """Yield what the schedule alone offers in typical rounds."""
        for index in self._typical_rounds(getattr(self.schedule, "period", None)):
            yield self.schedule.configure_conditions(index, self.steps_per_epoch, self.seed)

    def raw_profiles(self) -> Iterator[Profiles]:
        """Yield typical profiles as the schedule alone gives them, without the clock."""
        return replace(self, clock=None).typical_profiles()

    def typical_plans(self, learning_rate: float) -> Iterator[RoundPlan]:
        """Yield undrawn plans of typical rounds at a learning rate."""
        for profiles in self.typical_profiles():
            yield self.at_rate(self.undrawn(profiles), learning_rate)


def check_step_limit(limit: StepLimit) -> None:
    """Refuse what is no limit on local steps.

    >>> check_step_limit(0)
    Traceback (most recent call last):
        ...
    ValueError: max_local_steps=0 must be a whole number of local steps, 1 or more, 'auto', or None for no limit
    """
    whole = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1
    if not (whole or limit is None or limit == "auto"):
        raise ValueError(
            f"max_local_steps={limit!r} must be a whole number of local steps, 1 or more, 'auto', or None for no limit"
        )


def target_weights(weights: Literal["size", "uniform"] | list[float] | str, sizes: IntVector) -> Vector:
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
        if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
            raise ValueError("weights must be finite numbers >= 0 with a positive sum")
    return values / values.sum()
