"""The systems that are diagnosed, the clients of a configuration, of a table or of a run; and what follows for each."""

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning import theory
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.data.partitions import IID, expected_sizes
from fl_lightning.diagnosis.dry_run import GivenConditions, bounded_parts, given_conditions, planner_of, typical_rounds
from fl_lightning.diagnosis.given_clients import ClientTable
from fl_lightning.diagnosis.objective import Diagnosis, Needs, TypicalRound, diagnose
from fl_lightning.diagnosis.regime import Regime, regime
from fl_lightning.engine.batches import steps_per_epoch
from fl_lightning.output import only_planning
from fl_lightning.parts.traits import Keeps
from fl_lightning.planning import Planner, target_weights
from fl_lightning.runs.records import CHECKPOINTS, RunError, Table
from fl_lightning.runs.storage import DamagedFileError, load_latest
from fl_lightning.samplers import Importance
from fl_lightning.samplers.selection import Selection
from fl_lightning.system import Clock, Traffic
from fl_lightning.types import Conditions, IntVector, Profiles, Vector

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from fl_lightning.loop import FederatedLoop

_LOG = logging.getLogger("fl_lightning")
_ROUNDS = 96
_STATIC_ROUNDS = 16
_MOST_COUNTED = 5_000  # clients, of which it is worked out how many are there
_CONDITIONS_SEED = 0x5EED
_MEMORY: dict[Keeps, str] = {
    "nothing": "",
    "memory": "names, memory",
    "client models": "client models",
    "client vectors": "client vectors, ACK",
}


def planner_of_table(table: ClientTable, loop: "Namespace") -> tuple[Planner, IntVector | None, list[str]]:
    """Return the same three as of a configuration; ``loop`` has what a table leaves open: channel, clock and lr."""
    rounds = min(_STATIC_ROUNDS, _num_rounds(len(table.weights)))
    given = GivenConditions([Conditions(table.num_steps, table.failure_rates)] * rounds)
    return _planned(given, table.weights, loop, 0, float("nan")), None, []


def planner_of_config(settings: "Namespace", model_bytes: float) -> tuple[Planner, IntVector | None, list[str]]:
    """Return a planner of a configuration's clients, how many examples of each class they have if known, and notes.

    Its algorithm is FedAvg, for others to take its place. The bytes of the model that travels are NaN where unknown.
    """
    loop = settings.loop
    notes = []
    sizes, label_counts = expected_sizes(settings.data, settings.seed)
    if sizes is None:
        sizes = settings.data.load(settings.seed).sizes
        notes.append("The data was loaded, because nothing else tells how many examples each client has.")
    epoch = steps_per_epoch(sizes, loop.batch_size)

    @lru_cache(maxsize=10_000_000 // len(sizes))  # all algorithms meet the same; some are tried over many rounds
    def conditions_of(index: int) -> Conditions:
        offered: Conditions = loop.schedule.configure_conditions(index, epoch, settings.seed + _CONDITIONS_SEED)
        return offered

    conditions = [conditions_of(index) for index in range(1, _num_rounds(len(sizes)) + 1)]
    static = all(np.array_equal(vars(conditions[0])[name], vars(conditions[1])[name]) for name in vars(conditions[0]))
    conditions = conditions[:_STATIC_ROUNDS] if static else conditions
    given = GivenConditions(conditions, None if static else conditions_of)
    weights = target_weights(loop.weights, sizes)
    return _planned(given, weights, loop, settings.seed, model_bytes), label_counts, notes


def _planned(given: GivenConditions, weights: Vector, loop: "Namespace", seed: int, size: float) -> Planner:
    """Return a planner of FedAvg; its clock knows the clients and the size of the model, NaN for unknown."""
    clock = loop.clock or Clock()
    clock.setup(len(weights), seed, lambda: _offered(given, weights), Traffic(download=size, upload=size, model=size))
    return planner_of(Algorithm(), System(schedule=given, channel=loop.channel, clock=clock), weights, loop.lr)


def _offered(given: GivenConditions, weights: Vector) -> Iterator[Profiles]:
    for each in given.rounds:
        yield Profiles(conditions=each, weights=weights, accumulation=each.num_steps.astype(np.float64))


def absence_notes(planner: Planner, num_draws: int) -> list[str]:
    """Return in words how many clients are there, and what follows for the draws."""
    availability, num_clients = planner.system.clock.availability, len(planner.weights)
    if availability is None or num_clients > _MOST_COUNTED:
        return []
    hours = availability.hours(num_clients, planner.system.clock.seed)
    draws, fewer = np.mean([theory.expected_draws(each, num_draws) for each in hours], axis=0)
    rates = availability.rates(num_clients, planner.system.clock.seed)
    never = f" {int((rates == 0).sum())} clients are never there: no algorithm counts them." * bool((rates == 0).any())
    rarest = 1 / min(rates[rates > 0], default=1.0)
    return [
        f"Half of the clients are there in less than {100 * float(np.median(rates)):.1f} % of the rounds. "
        f"In {100 * fewer:.0f} % of them fewer than {num_draws} are, who are all drawn: {draws:.1f} on average. "
        f"The rarest is there once in {rarest:.0f} rounds, and memory holds nothing of it before.{never}"
    ]


def _num_rounds(num_clients: int) -> int:
    return int(np.clip(1_000_000 // num_clients, 4, _ROUNDS))


def diagnosed(algorithms: Iterable[tuple[str, Algorithm]], like: Planner) -> tuple[list[Diagnosis], list[str]]:
    """Return what is known of each algorithm on the clients of a planner, and whose objective depends on the data."""
    found: list[Diagnosis] = []
    unknown: list[str] = []
    idle: list[str] = []
    for name, given in algorithms:
        votes = given.solver.obstacle
        algorithm = replace(given, solver=given.solver.voting()) if votes else given
        planner = planner_of(algorithm, like.system, like.weights, like.learning_rate)
        with only_planning():
            rounds = typical_rounds(planner)
            if rounds is None:
                unknown.append(name)
                continue
            if not any(each.coefficients.any() for each in rounds):  # such as secure sums of a single client
                idle.append(name)
                continue
            diagnosis = diagnose(name, like.weights, rounds, needs_of(planner, rounds[0]))
        found.append(replace(diagnosis, bounded=bounded_parts(algorithm, like.system), votes=votes))
    for name in idle:
        _LOG.warning("%s is left out: no upload of any client would ever count", name)
    return found, unknown


def regime_of(
    algorithms: Iterable[tuple[str, Algorithm]],
    found: Sequence[Diagnosis],
    like: Planner,
    labels: IntVector | None,
    rounds: int,
    partition: object = None,
) -> Regime | None:
    """Return whether consistency pays beyond the limit on work of a limited algorithm among them; None without one.

    Clients of an IID partition are alike, whatever the labels are that nobody has looked at.
    """
    if labels is None and isinstance(partition, IID):
        labels = np.ones((len(like.weights), 1), dtype=np.int64)
    known = {each.name: each for each in found if np.isfinite(each.step_variance)}
    for name, algorithm in algorithms:
        sampling = algorithm.sampling
        limited = algorithm.max_local_steps is not None and sampling.traits.consistent and name in known
        if limited and isinstance(sampling, Selection):
            plain = Selection(Importance(), sampling.clients_per_round, sampling.drawing)
            biased, _ = diagnosed([("", replace(algorithm, sampling=plain))], like)
            return regime(known[name], biased[0], labels, rounds) if biased else None
    return None


def needs_of(planner: Planner, first: TypicalRound) -> Needs:
    """Return what the algorithm must know, found by changing q and the work and seeing what follows in a first round.

    So it holds for parts that are not ours as well. A common factor on all clients is a step length and tells nothing.
    """
    conditions = given_conditions(planner).rounds[0]
    tilt = np.linspace(0.9, 0.4, len(planner.weights))
    changed = {
        "q": replace(conditions, failure_rates=conditions.failure_rates * tilt + 0.3 * (1 - tilt)),
        "work": replace(conditions, num_steps=conditions.num_steps + 1 + np.arange(len(tilt)) % 7),
    }
    base = _factors(planner, conditions)
    differ = {
        name: [_differ(*pair) for pair in zip(base, _factors(planner, other), strict=True)]
        for name, other in changed.items()
    }
    before = [name for name, (p, of_drawn, _) in differ.items() if p or of_drawn]
    if first.presence is not None:
        before.append("presence")
    if first.questions:
        before = [*(name for name in before if name != "work"), "answers"]
    traits = planner.algorithm.aggregator.traits
    memory = _MEMORY[traits.keeps]
    with_upload = [name for name, (_, _, own) in differ.items() if own and not memory]
    if not memory and ("q" in with_upload or (not with_upload and _differ(base[2], np.ones(len(tilt))))):
        with_upload.append("name")
    moments = not memory and traits.moments
    of_updates = traits.keeps in ("memory", "client vectors")
    stale = (planner.algorithm.sampling.traits.asynchronous and not of_updates) or (moments and traits.linear)
    kept = "server moments" if moments else memory
    return Needs(tuple(before), tuple(with_upload), kept, stale, anonymous=moments)


def _factors(planner: Planner, conditions: Conditions) -> tuple[Vector, Vector, Vector]:
    """Return p, the factors of the drawn clients and those of the aggregator, before anything was learned."""
    system = replace(planner.system, schedule=GivenConditions([conditions]))
    plans = planner_of(copy.deepcopy(planner.algorithm), system, planner.weights, planner.learning_rate)
    plans.start()
    plan = plans.undrawn(plans.profiles(conditions))
    cohort, coefficients = plan.cohort, plan.coefficients
    own = np.divide(coefficients, cohort.coefficients, out=np.zeros_like(coefficients), where=cohort.coefficients > 0)
    return cohort.probabilities, cohort.coefficients, own


def _differ(first: Vector, second: Vector) -> bool:
    if not (first.any() and second.any()):
        return False
    return not np.allclose(first / np.abs(first).sum(), second / np.abs(second).sum(), rtol=1e-9, atol=1e-14)


def measured(folder: Path, algorithm: Algorithm, num_clients: int) -> tuple[int, Vector | None, Algorithm]:
    """Return the rounds that a run made, the factors measured in them, and the algorithm as it was then.

    Raises:
        RunError: If the folder has no checkpoint, or one of another config.
    """
    try:
        checkpoint, _ = load_latest(folder / CHECKPOINTS)
    except DamagedFileError as error:
        raise RunError(str(error)) from None
    if checkpoint is None:
        raise RunError(f"{folder} has no checkpoint yet, which holds what was measured: train some rounds")
    loaded = copy.deepcopy(algorithm)
    try:
        state = checkpoint["loop"]
        loaded.uploads.setup(num_clients, state["weights"])
        loaded.uploads.load_state_dict(state["parts"].get("uploads", {}))
        factors = loaded.uploads.measured_factors()
        finished = int(state["round"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(f"the checkpoint in {folder} is not one of its config: {error}") from None
    if factors is not None and len(factors) != num_clients:
        raise RunError(f"the checkpoint in {folder} knows {len(factors)} clients, its config {num_clients}")
    return finished, factors, loaded


def fedavg_objective(loop: "FederatedLoop", clients: Table) -> Vector:
    """Return the objective that FedAvg would have optimised under the conditions of a run, whose table is given."""
    weights = clients["weight"]
    indices = np.unique(np.linspace(1, loop.rounds, min(_num_rounds(len(weights)), loop.rounds)).round().astype(int))
    epoch = steps_per_epoch(clients["size"].astype(np.int64), loop.batch_size)
    schedule = loop.system.schedule
    conditions = [schedule.configure_conditions(int(index), epoch, loop.seed) for index in indices]
    given, clock = GivenConditions(conditions), copy.copy(loop.system.clock)
    if clock.changes_conditions and not clock.is_set_up:  # of a run that was finished before
        clock.setup(len(weights), loop.seed, lambda: _offered(given, weights), Traffic())
    clock = clock if clock.changes_conditions else Clock()
    system = System(schedule=given, channel=loop.system.channel, clock=clock)
    fedavg = planner_of(Algorithm(solver=loop.algorithm.solver), system, weights, loop.lr or 1.0)
    with only_planning():
        rounds = typical_rounds(fedavg)
    return diagnose("fedavg", weights, rounds or []).effective_weights
