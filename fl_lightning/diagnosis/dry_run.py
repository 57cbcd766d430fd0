"""Rounds that are planned but not trained: what a diagnosis looks at.

Samplers that ask clients or learn from uploads are given made-up gradients. Where two made-up worlds lead to different
objectives, the objective depends on the data and nothing can be said beforehand.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fl_lightning import theory
from fl_lightning.aggregators import Aggregator
from fl_lightning.diagnosis.objective import TypicalRound
from fl_lightning.parts.protocols import Channel
from fl_lightning.planning import Planner, StepLimit
from fl_lightning.samplers import Sampler, WithReplacement
from fl_lightning.server.calibration import Calibration
from fl_lightning.solvers import Solver
from fl_lightning.system import Clock
from fl_lightning.types import Cohort, Conditions, IntVector, Profiles, RoundPlan, RoundResult, Updates, Vector
from fl_lightning.uploads import Uploads

_MEMORY_FLOATS = 20_000_000  # for the made-up gradients
_WORLD_ROUNDS, _WORLD_CLIENTS = 16, 200


@dataclass(frozen=True)
class Algorithm:
    """The parts that make an algorithm."""

    sampling: Any  # a fl_lightning.parts.protocols.Sampling around a sampler
    aggregator: Aggregator
    solver: Solver
    calibration: Calibration
    uploads: Uploads = field(default_factory=Uploads)
    max_local_steps: StepLimit = None  # nobody is asked for more


@dataclass(frozen=True)
class System:
    """The clients and their conditions in typical rounds."""

    weights: Vector  # w, (M,)
    conditions: Sequence[Conditions]  # one entry for each round
    channel: Channel
    lr: float
    clock: Clock | None = None  # set up; without one nobody is late and nothing is forecast


class GivenConditions:
    """A schedule that plays given rounds, and then starts again.

    Args:
        rounds: T and q of each round.
    """

    def __init__(self, rounds: Sequence[Conditions]) -> None:
        self.rounds, self.period = rounds, len(rounds)

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return T and q of all clients in this round."""
        return self.rounds[(round_index - 1) % self.period]


def planner(algorithm: Algorithm, system: System) -> Planner:
    """Return the planner of an algorithm on a system."""
    made = Planner(
        schedule=GivenConditions(system.conditions),
        sampling=algorithm.sampling,
        aggregator=algorithm.aggregator,
        solver=algorithm.solver,
        calibration=algorithm.calibration,
        uploads=algorithm.uploads,
        clock=system.clock,
        weights=system.weights,
        learning_rate=system.lr,
        steps_per_epoch=np.ones(len(system.weights), dtype=np.int64),
        max_local_steps=algorithm.max_local_steps,
    )
    if system.clock is None or algorithm.max_local_steps is None:
        return made
    return replace(made, clock=system.clock.expecting(len(system.weights), made.raw_profiles))


class ImaginedProbe:
    """Answers a sampler's questions with made-up gradients of unequal length, and counts what the answers cost."""

    def __init__(self, gradients: torch.Tensor, profiles: Profiles, losses: Vector) -> None:
        self._gradients, self._profiles, self._losses = gradients, profiles, losses
        self.num_steps = 0
        self.trained: set[int] = set()
        self.asked: IntVector = np.empty(0, dtype=np.int64)

    def losses(self, clients: IntVector) -> Vector:
        """Return made-up losses; a forward pass is charged as a third of a step."""
        self.num_steps += -(-len(clients) // 3)
        self.asked = np.union1d(self.asked, clients)
        return self._losses[clients]

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Return made-up gradients."""
        self.num_steps += len(clients)
        self.asked = np.union1d(self.asked, clients)
        return self._gradients[torch.from_numpy(clients)]

    def updates(self, clients: IntVector) -> Updates:
        """Return made-up updates: A times the gradient."""
        self.asked = np.union1d(self.asked, clients)
        if not self.trained.issuperset(clients.tolist()):
            self.num_steps += int(self._profiles.num_steps[clients].sum())
            self.trained.update(clients.tolist())
        return _updates(clients, self._gradients, self._profiles, self._losses)


def dry_run(
    algorithm: Algorithm, system: System, world: int = 0, num_rounds: int | None = None, learn: bool = False
) -> list[TypicalRound]:
    """Plan rounds one after the other and answer the sampler's questions from a made-up world of gradients.

    Args:
        algorithm: Its parts; they are left as they are.
        system: The clients.
        world: Which made-up gradients.
        num_rounds: How many rounds; all that the system has by default.
        learn: Let the sampler learn from made-up uploads.
    """
    parts = copy.deepcopy(algorithm)
    plans = planner(parts, system)
    plans.start()
    gradients, losses = _world(len(system.weights), world) if asks_or_learns(parts) else (torch.empty(0), np.empty(0))
    rounds = []
    for index in range(1, len(system.conditions[:num_rounds]) + 1):
        conditions = plans.conditions(index)
        probe = ImaginedProbe(gradients, plans.profiles(conditions), losses)
        plan = plans.plan(index, conditions, probe)
        inclusion = _inclusion(parts.sampling, plan.cohort)
        typical = _typical(plan, probe, system.lr, inclusion, parts.uploads.noise_variance(plan))
        delivered = system.channel.configure_delivery(plan, seed=0)
        rounds.append(typical if system.clock is None else _with_costs(typical, parts, system, plan, probe))
        if learn:
            updates = _updates(np.flatnonzero(delivered), gradients, plan.profiles, losses)
            result = RoundResult(plan=plan, delivered=delivered, updates=updates, metrics={}, training_seconds=0.0)
            parts.sampling.on_round_end(loop=None, result=result)
    return rounds


def _with_costs(
    typical: TypicalRound, parts: Algorithm, system: System, plan: RoundPlan, probe: ImaginedProbe
) -> TypicalRound:
    """Add what the round costs by the clock."""
    if system.clock is None:
        return typical
    extra = (parts.aggregator.num_downloaded - 1) * system.clock.traffic.model
    clock = copy.copy(system.clock)
    values = clock.traffic.model / 4  # of float32; NaN where the model is unknown
    upload = parts.aggregator.upload_bytes(values, clock.traffic.upload)
    clock.traffic = replace(clock.traffic, download=clock.traffic.download + extra, upload=upload)
    delivered = clock.in_time(plan, system.channel.configure_delivery(clock.linked(plan), seed=0))
    costs = clock.charged(plan, delivered, parts.aggregator, parts.sampling, probe.asked)
    return replace(
        typical, seconds=costs.round_time, uplink_bytes=costs.uplink_bytes, downlink_bytes=costs.downlink_bytes
    )


def typical_rounds(algorithm: Algorithm, system: System) -> list[TypicalRound] | None:
    """Return typical rounds of an algorithm; None where its objective depends on the data.

    That is so where two made-up worlds lead to two objectives, and where the aggregator is not linear.
    """
    if not algorithm.aggregator.linear:
        return None
    if not asks_or_learns(algorithm):
        return dry_run(algorithm, system)
    few = _excerpt(system, max(_WORLD_CLIENTS, 4 * algorithm.sampling.num_draws(len(system.weights))))
    bare = replace(algorithm, uploads=Uploads())  # what was measured is known of all clients, not of an excerpt
    naive = dry_run(bare, few, 1, _WORLD_ROUNDS)
    first, second = (dry_run(bare, few, world, _WORLD_ROUNDS, learn=True) for world in (1, 2))
    if np.abs(_mean_objective(first) - _mean_objective(second)).sum() > 1e-6:
        return None
    learned = any(not np.allclose(a.probabilities, b.probabilities) for a, b in zip(naive, first, strict=True))
    return dry_run(algorithm, system, learn=learned)


def _excerpt(system: System, num_clients: int) -> System:
    """Return a system of some of the clients: what a sampler does with data it does with few clients as well."""
    if num_clients >= len(system.weights):
        return system
    chosen = np.linspace(0, len(system.weights) - 1, num_clients).astype(np.int64)
    weights = system.weights[chosen]
    if not weights.sum() > 0:
        return system
    conditions = [Conditions(each.num_steps[chosen], each.failure_rates[chosen]) for each in system.conditions]
    return replace(system, weights=weights / weights.sum(), conditions=conditions, clock=None)


def _mean_objective(rounds: list[TypicalRound]) -> Vector:
    amounts = [theory.contribution(r.probabilities, r.failure_rates, r.coefficients, r.accumulation) for r in rounds]
    return np.asarray(np.mean([theory.effective_weights(each) for each in amounts], axis=0))


def asks_or_learns(algorithm: Algorithm) -> bool:
    """Return whether the sampler may ask clients or learn from uploads, as far as its class tells."""
    kind = type(algorithm.sampling.sampler)
    return kind.observe is not Sampler.observe or kind.prepare is not Sampler.prepare


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
    rows = torch.from_numpy(clients)
    accumulation = torch.from_numpy(profiles.accumulation[clients]).to(gradients)
    deltas = gradients[rows] * accumulation[:, None]
    return Updates(
        clients=clients,
        deltas=deltas,
        buffers=deltas.new_empty((len(clients), 0)),
        num_steps=profiles.num_steps[clients],
        losses=losses[clients],
    )


def _inclusion(sampling: Any, cohort: Cohort) -> Vector:
    """Return the probability that a client trains at all; draws that are not independent avoid to repeat themselves."""
    drawing = sampling.drawing or sampling.sampler.drawing
    independent = isinstance(drawing, WithReplacement) and type(sampling.sampler).draw is Sampler.draw
    if independent:
        return 1 - (1 - cohort.probabilities) ** cohort.num_draws
    return np.minimum(1.0, cohort.num_draws * cohort.probabilities)


def _typical(plan: RoundPlan, probe: ImaginedProbe, lr: float, inclusion: Vector, noise: float) -> TypicalRound:
    profiles, cohort = plan.profiles, plan.cohort
    steps = profiles.num_steps.astype(np.float64)
    trained = sorted(probe.trained)
    on_the_way = [each for each in (plan.expected.uploaded, plan.expected.measured) if each is not None]
    reused = float(inclusion[trained] @ steps[trained])
    return TypicalRound(
        num_steps=steps,
        failure_rates=profiles.failure_rates,
        accumulation=profiles.accumulation,
        probabilities=cohort.probabilities,
        coefficients=np.prod([plan.coefficients, *on_the_way], axis=0),
        scale=plan.learning_rate * plan.server_scale / lr,
        num_draws=cohort.num_draws,
        work=float(inclusion @ steps),
        questions=probe.num_steps - reused,
        noise=noise,
        offered=None if profiles.offered is None else profiles.offered.astype(np.float64),
        offered_accumulation=profiles.offered_accumulation,
    )
