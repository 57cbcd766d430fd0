"""Rounds that are planned but not trained: what a diagnosis looks at.

Samplers that ask clients or learn from uploads are given made-up gradients. Where two made-up worlds lead to different
objectives, the objective depends on the data and nothing can be said beforehand.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from fl_lightning import theory
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.diagnosis.objective import TypicalRound
from fl_lightning.parts.bases import Schedule
from fl_lightning.parts.traits import Effect, ScheduleTraits, layers
from fl_lightning.planning import Planner
from fl_lightning.samplers import WithReplacement
from fl_lightning.samplers.selection import Selection
from fl_lightning.system.defaults import ScheduledLinks
from fl_lightning.types import Asked, Conditions, IntVector, Profiles, RoundPlan, RoundResult, Updates, Vector
from fl_lightning.uploads import Uploads

_MEMORY_FLOATS = 20_000_000  # for the made-up gradients
_WORLD_ROUNDS, _WORLD_CLIENTS = 16, 200
_VALUES = 100_000  # clients times rounds where more rounds than are given are looked at
_AVAILABILITY_ROUNDS, _CHECKED_ROUNDS = 512, 4096  # the latter of a sampler that relies on a forecast
_APART = 37  # rounds between those that are looked at where clients come and go: hardly related, at all times of a day


def unknown_parts(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the parts whose effect on Omega depends on the data.

    >>> from fl_lightning.uploads import Quantized, TopK
    >>> unknown_parts(Algorithm(uploads=[Quantized(), TopK(), TopK(error_feedback=False)]))
    ('TopK',)
    """
    return _parts(algorithm, "unknown")


def bounded_parts(algorithm: Algorithm, system: System) -> tuple[str, ...]:
    """Return the parts with which the predicted Omega is a limit, or lacks what a run measures.

    The probability of being among the first is exact where each draw and each link is independent of all others and
    nothing changes how long clients take.
    """
    found, clock = _parts(algorithm, "bounded"), system.clock
    if clock.availability is not None:  # the wrapped one names it, and not what is around
        open_parts = [type(each).__name__ for each in layers(algorithm.aggregator) if each.traits.absence != "exact"]
        found = (*found, *(name for name in open_parts[-1:] if name not in found))
    if clock.take_first is None:
        return found
    sampling, channel = algorithm.sampling, system.channel
    independent = isinstance(sampling, Selection) and isinstance(sampling.way_of_drawing, WithReplacement)
    shared = isinstance(channel, ScheduledLinks) or vars(channel).get("multiplicity") != "independent"
    return found if independent and not shared and not clock.jitter else (*found, "take_first")


def _parts(algorithm: Algorithm, effect: Effect) -> tuple[str, ...]:
    aggregator = algorithm.aggregator.traits
    of_aggregator: Effect = aggregator.effect if aggregator.linear else "unknown"
    effects = [(algorithm.aggregator, of_aggregator), *((step, step.traits.effect) for step in algorithm.uploads.steps)]
    return tuple(type(part).__name__ for part, its in effects if its == effect)


class GivenConditions(Schedule):
    """A schedule that plays given rounds, and then starts again.

    Where ``more`` returns later rounds instead, what a sampler forecasts is not what it is judged by.
    """

    def __init__(self, rounds: Sequence[Conditions], more: Callable[[int], Conditions] | None = None) -> None:
        self.rounds, self.more = rounds, more
        self.traits = ScheduleTraits(period=len(rounds) if more is None else None)

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return T and q of all clients in this round."""
        if self.more is not None and round_index > len(self.rounds):
            return self.more(round_index)
        return self.rounds[(round_index - 1) % len(self.rounds)]


def planner_of(algorithm: Algorithm, system: System, weights: Vector, lr: float) -> Planner:
    """Return the planner of an algorithm on given rounds; with no clock set up nobody is late, nothing is forecast."""
    epochs = np.ones(len(weights), dtype=np.int64)
    made = Planner(algorithm=algorithm, system=system, weights=weights, learning_rate=lr, steps_per_epoch=epochs)
    if not system.clock.is_set_up or algorithm.max_local_steps is None:
        return made
    clock = system.clock.expecting(len(weights), made.raw_profiles)
    return replace(made, system=replace(system, clock=clock))


def given_conditions(planner: Planner) -> GivenConditions:
    """Return the rounds that a planner's system has."""
    schedule = planner.system.schedule
    if not isinstance(schedule, GivenConditions):
        raise TypeError(f"a dry run plays given rounds, but the schedule is a {type(schedule).__name__}")
    return schedule


class ImaginedProbe:
    """Answers a sampler's questions with made-up gradients of unequal length, and counts what the answers cost."""

    def __init__(self, gradients: torch.Tensor, profiles: Profiles, losses: Vector) -> None:
        self._gradients, self._losses = gradients, losses
        self._profiles = profiles
        self.num_steps = 0
        self.trained: set[int] = set()
        self.asked = Asked()

    def _ask(self, clients: IntVector, num_steps: int) -> None:
        self.asked = replace(self.asked, clients=np.union1d(self.asked.clients, clients))
        self.num_steps += num_steps

    def losses(self, clients: IntVector) -> Vector:
        """Return made-up losses; a forward pass is charged as a third of a step."""
        self._ask(clients, -(-len(clients) // 3))
        return self._losses[clients]

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Return made-up gradients."""
        self._ask(clients, len(clients))
        return self._gradients[torch.from_numpy(clients)]

    def label_counts(self) -> IntVector:
        """Return made-up counts: each client has one of ten classes."""
        counts: IntVector = np.eye(10, dtype=np.int64)[(10 * self._losses).astype(np.int64)]
        self.asked = replace(self.asked, numbers=counts.size)
        return counts

    def updates(self, clients: IntVector) -> Updates:
        """Return made-up updates: A times the gradient."""
        known = self.trained.issuperset(clients.tolist())
        self._ask(clients, 0 if known else int(self._profiles.num_steps[clients].sum()))
        self.trained.update(clients.tolist())
        return _updates(clients, self._gradients, self._profiles, self._losses)


def dry_run(planner: Planner, world: int = 0, num_rounds: int | None = None, learn: bool = False) -> list[TypicalRound]:
    """Plan given rounds one after the other and answer the sampler's questions from a made-up world of gradients.

    The algorithm's own parts are left as they are; ``learn`` lets a copy of the sampler learn from made-up uploads.
    """
    algorithm, system = copy.deepcopy(planner.algorithm), planner.system
    plans = replace(planner, algorithm=algorithm)
    plans.start()
    asks_or_learns = not algorithm.sampling.traits.is_fixed
    gradients, losses = _world(len(plans.weights), world) if asks_or_learns else (torch.empty(0), np.empty(0))
    rounds: list[TypicalRound] = []
    indices = _indices(plans, num_rounds)
    if algorithm.aggregator.traits.keeps == "memory" and not asks_or_learns:
        _fill_memory(plans, indices)
    for index in indices:
        conditions = plans.conditions(index)
        probe = ImaginedProbe(gradients, plans.profiles(conditions), losses)
        plan = _with_usual_draws(plans, plans.plan(index, conditions, probe))
        typical = _typical(plan, probe, plans.learning_rate, algorithm.uploads.noise_variance(plan))
        if algorithm.personal is not None:
            own = float(plan.cohort.inclusion @ algorithm.personal.num_steps(plan))
            typical = replace(typical, work=typical.work + own)
        delivered = system.channel.configure_delivery(plan, seed=0)
        rounds.append(_with_costs(typical, plans, plan, probe) if system.clock.is_set_up else typical)
        algorithm.aggregator.expect(plan)
        if learn and isinstance(algorithm.sampling, Selection):
            updates = _updates(np.flatnonzero(delivered), gradients, plan.profiles, losses)
            result = RoundResult(plan=plan, delivered=delivered, updates=updates, metrics={}, training_seconds=0.0)
            algorithm.sampling.on_round_end(loop=None, result=result)
    return rounds


def _with_usual_draws(plans: Planner, plan: RoundPlan) -> RoundPlan:
    """Return a plan whose factors in the long run are those of K draws, where fewer are there in this round."""
    algorithm, num_draws = plans.algorithm, plans.algorithm.sampling.num_draws(len(plans.weights))
    remembers = algorithm.aggregator.traits.counts_absent and plan.profiles.conditions.presence is not None
    if not remembers or plan.expected.measured is None or plan.cohort.num_draws == num_draws:
        return plan
    usual = replace(plan, cohort=replace(plan.cohort, num_draws=num_draws))
    found = [algorithm.aggregator.objective_factors(each, lambda _: plan.cohort.counts) for each in (plan, usual)]
    if found[0] is None or found[1] is None:
        return plan
    ratio = np.divide(found[1], found[0], out=np.ones(len(plans.weights)), where=found[0] > 0)
    return replace(plan, expected=replace(plan.expected, measured=plan.expected.measured * ratio))


def _fill_memory(plans: Planner, indices: range) -> None:
    """Let an aggregator expect the work of typical rounds; of those who are hardly ever there, the mean of it."""
    aggregator = plans.algorithm.aggregator
    planned = [plans.plan(index) for index in indices]
    works = [plan.profiles.accumulation for plan in planned]
    usual = replace(planned[0].profiles, accumulation=np.mean(works, axis=0))
    aggregator.expect(replace(planned[0], expected=replace(planned[0].expected, profiles=usual)))
    for plan in planned:
        aggregator.expect(plan)


def _indices(planner: Planner, num_rounds: int | None) -> range:
    """Return which rounds are looked at; more of them where the objective depends on who is there with whom."""
    comes_and_goes = planner.system.clock.availability is not None
    most = 0
    if num_rounds is None and comes_and_goes:
        # Those who are there take the place of the others.
        plan = planner.plan(1) if planner.algorithm.sampling.traits.is_fixed else None
        expected = planner.undrawn(planner.profiles(planner.conditions(1))).expected if plan is None else plan.expected
        replaces = expected.average is None or expected.measured is not None
        most = _AVAILABILITY_ROUNDS if replaces else 0
    elif num_rounds is None and planner.algorithm.sampling.traits.needs_forecast:
        most = _CHECKED_ROUNDS if given_conditions(planner).more is not None else 0
    given = given_conditions(planner).rounds[:num_rounds]
    number = max(len(given), min(most, _VALUES // len(planner.weights)))
    return range(1, number * _APART + 1, _APART) if comes_and_goes else range(1, number + 1)


def _with_costs(typical: TypicalRound, plans: Planner, plan: RoundPlan, probe: ImaginedProbe) -> TypicalRound:
    """Add what the round costs by the clock."""
    aggregator, clock = plans.algorithm.aggregator, copy.copy(plans.system.clock)
    extra = (aggregator.traits.num_downloaded - 1) * clock.traffic.model
    values = clock.traffic.model / 4  # of float32; NaN where the model is unknown
    upload = aggregator.upload_bytes(values, clock.traffic.upload)
    clock.traffic = replace(clock.traffic, download=clock.traffic.download + extra, upload=upload)
    delivered = clock.delivered(plan, plans.system.channel, seed=0)
    costs = clock.charged(plan, delivered, aggregator, plans.algorithm.sampling.traits.asks, probe.asked)
    return replace(
        typical, seconds=costs.round_time, uplink_bytes=costs.uplink_bytes, downlink_bytes=costs.downlink_bytes
    )


def typical_rounds(planner: Planner) -> list[TypicalRound] | None:
    """Return typical rounds of an algorithm on given rounds; None where its objective depends on the data.

    That is so where two made-up worlds lead to two objectives, and where a part says so.
    """
    algorithm = planner.algorithm
    if unknown_parts(algorithm):
        return None
    if algorithm.sampling.traits.is_fixed:
        return dry_run(planner)
    # What was measured on the way is known of all clients, not of an excerpt.
    few = _excerpt(planner, max(_WORLD_CLIENTS, 4 * algorithm.sampling.num_draws(len(planner.weights))))
    few = replace(few, algorithm=replace(algorithm, uploads=Uploads()))
    naive = dry_run(few, 1, _WORLD_ROUNDS)
    first, second = (dry_run(few, world, _WORLD_ROUNDS, learn=True) for world in (1, 2))
    if np.abs(_mean_objective(first) - _mean_objective(second)).sum() > 1e-6:
        return None
    learned = any(not np.allclose(a.probabilities, b.probabilities) for a, b in zip(naive, first, strict=True))
    return dry_run(planner, learn=learned)


def _excerpt(planner: Planner, num_clients: int) -> Planner:
    """Return a planner of some of the clients: what a sampler does with data it does with few clients as well."""
    if num_clients >= len(planner.weights):
        return planner
    chosen = np.linspace(0, len(planner.weights) - 1, num_clients).astype(np.int64)
    weights = planner.weights[chosen]
    if not weights.sum() > 0:
        return planner
    given = given_conditions(planner).rounds
    rounds = [Conditions(each.num_steps[chosen], each.failure_rates[chosen]) for each in given]
    system = System(schedule=GivenConditions(rounds), channel=planner.system.channel)
    return planner_of(planner.algorithm, system, weights / weights.sum(), planner.learning_rate)


def _mean_objective(rounds: list[TypicalRound]) -> Vector:
    amounts = [theory.contribution(r.probabilities, r.failure_rates, r.coefficients, r.accumulation) for r in rounds]
    return np.asarray(np.mean([theory.effective_weights(each) for each in amounts], axis=0))


def _world(num_clients: int, world: int) -> tuple[torch.Tensor, Vector]:
    """Return gradients and losses. World 0: all gradients equally long; 1: very unequal; 2: nearly the same vector."""
    rng = np.random.default_rng(world)
    dimension = int(np.clip(_MEMORY_FLOATS // num_clients, 16, 120))
    rows = rng.standard_normal((num_clients, dimension))
    if world == 0:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    elif world == 1:
        rows = rows * rng.lognormal(sigma=1.0, size=(num_clients, 1))
    else:
        rows = rng.standard_normal(dimension) + 0.05 * rows
    return torch.from_numpy(rows).float(), rng.random(num_clients)


def _updates(clients: IntVector, gradients: torch.Tensor, profiles: Profiles, losses: Vector) -> Updates:
    accumulation = torch.from_numpy(profiles.accumulation[clients]).to(gradients)
    deltas = gradients[torch.from_numpy(clients)] * accumulation[:, None]
    return Updates(
        clients=clients,
        deltas=deltas,
        buffers=deltas.new_empty((len(clients), 0)),
        num_steps=profiles.num_steps[clients],
        losses=losses[clients],
    )


def _typical(plan: RoundPlan, probe: ImaginedProbe, lr: float, noise: float) -> TypicalRound:
    profiles, cohort = plan.profiles, plan.cohort
    conditions = profiles.conditions
    # What others do to a client's upload, such as sums that fail, depends on who is there: this round counts, not all.
    alone = cohort.average is not None and plan.expected.measured is not None
    lasting = plan.expected if alone else plan.expected.lasting
    probabilities, presence = lasting.probabilities, None
    if not alone and cohort.average is not None and conditions.chance is not None and conditions.presence is not None:
        # How often a client can be drawn in rounds with these T and q, over how often in all.
        presence = conditions.presence
        probabilities = probabilities * np.divide(
            conditions.chance, presence, out=np.zeros_like(presence), where=presence > 0
        )
    steps = profiles.num_steps.astype(np.float64)
    trained = sorted(probe.trained)
    on_the_way = [each for each in (plan.expected.uploaded, plan.expected.measured) if each is not None]
    return TypicalRound(
        failure_rates=profiles.failure_rates,
        accumulation=profiles.accumulation,
        probabilities=probabilities,
        coefficients=np.prod([lasting.coefficients, *on_the_way], axis=0),
        scale=plan.learning_rate * plan.server_scale / lr,
        num_draws=cohort.num_draws,
        work=float(cohort.inclusion @ steps),
        questions=probe.num_steps - float(cohort.inclusion[trained] @ steps[trained]),
        noise=noise,
        presence=presence,
        offered_accumulation=profiles.offered_accumulation,
    )
