"""What an algorithm must know or keep, found by changing q and the work and seeing what follows."""

import copy
from dataclasses import replace

import numpy as np

from fl_lightning.aggregators import Aggregator
from fl_lightning.asynchronous import AsynchronousSelection
from fl_lightning.diagnosis.dry_run import Algorithm, System, dry_run, planner
from fl_lightning.diagnosis.objective import Needs
from fl_lightning.types import Conditions, Vector


def needs_of(algorithm: Algorithm, system: System) -> Needs:
    """Return what the algorithm must know, found by changing q and the work and seeing what follows.

    So it holds for parts that are not ours as well. A common factor on all clients is a step length and tells nothing.
    """
    conditions = system.conditions[0]
    tilt = np.linspace(0.9, 0.4, len(system.weights))
    links = replace(conditions, failure_rates=conditions.failure_rates * tilt + 0.3 * (1 - tilt))
    work = replace(conditions, num_steps=conditions.num_steps + 1 + np.arange(len(tilt)) % 7)
    base = _laws(algorithm, system, conditions)
    by_links, by_work = _laws(algorithm, system, links), _laws(algorithm, system, work)
    before: list[str] = []
    with_upload: list[str] = []
    for name, other in (("q", by_links), ("work", by_work)):
        if _differ(base[0], other[0]) or _differ(base[1], other[1]):
            before.append(name)
    if dry_run(algorithm, system, num_rounds=1)[0].questions:
        before = [*(name for name in before if name != "work"), "answers"]
    aggregator = algorithm.aggregator
    while hasattr(aggregator, "aggregator"):  # a server optimizer around another aggregator
        aggregator = aggregator.aggregator
    memory = _memory(aggregator)
    if not memory:
        with_upload = [n for n, other in (("q", by_links), ("work", by_work)) if _differ(base[2], other[2])]
        if "q" in with_upload or (not with_upload and _differ(base[2], np.ones(len(tilt)))):
            with_upload.append("name")
    moments = not memory and aggregator is not algorithm.aggregator
    if moments:
        memory = "server moments"
    stale = isinstance(algorithm.sampling, AsynchronousSelection) or (moments and algorithm.aggregator.linear)
    return Needs(tuple(before), tuple(with_upload), memory, stale, anonymous=moments)


def _laws(algorithm: Algorithm, system: System, conditions: Conditions) -> tuple[Vector, Vector, Vector]:
    """Return p, the factors of the drawn clients and those of the aggregator, before anything was learned."""
    plans = planner(copy.deepcopy(algorithm), replace(system, conditions=[conditions]))
    plans.start()
    plan = plans.undrawn(plans.profiles(conditions))
    cohort, coefficients = plan.cohort, plan.coefficients
    scaled = cohort.coefficients > 0
    own = np.divide(coefficients, cohort.coefficients, out=np.zeros_like(coefficients), where=scaled)
    return cohort.probabilities, cohort.coefficients, own


def _differ(first: Vector, second: Vector) -> bool:
    if not (first.any() and second.any()):
        return False
    return not np.allclose(first / np.abs(first).sum(), second / np.abs(second).sum(), rtol=1e-9, atol=1e-14)


def _memory(aggregator: Aggregator) -> str:
    kind = type(aggregator)
    if kind.setup is Aggregator.setup:
        return ""
    if kind.start is not Aggregator.start:
        return "client models"
    if kind.gradient_shift is not Aggregator.gradient_shift:
        return "client vectors, ACK"
    return "names, memory"
