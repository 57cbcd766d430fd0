"""What an algorithm must know or keep, found by changing q and the work and seeing what follows."""

import copy
from dataclasses import replace

import numpy as np

from fl_lightning.diagnosis.dry_run import GivenConditions, dry_run, given_rounds, planner_of
from fl_lightning.diagnosis.objective import Needs
from fl_lightning.parts.traits import Keeps
from fl_lightning.planning import Planner
from fl_lightning.types import Conditions, Vector

_MEMORY: dict[Keeps, str] = {
    "nothing": "",
    "memory": "names, memory",
    "client models": "client models",
    "client vectors": "client vectors, ACK",
}


def needs_of(planner: Planner) -> Needs:
    """Return what the algorithm must know, found by changing q and the work and seeing what follows.

    So it holds for parts that are not ours as well. A common factor on all clients is a step length and tells nothing.
    """
    conditions = given_rounds(planner)[0]
    tilt = np.linspace(0.9, 0.4, len(planner.weights))
    links = replace(conditions, failure_rates=conditions.failure_rates * tilt + 0.3 * (1 - tilt))
    work = replace(conditions, num_steps=conditions.num_steps + 1 + np.arange(len(tilt)) % 7)
    base = _factors(planner, conditions)
    by_links, by_work = _factors(planner, links), _factors(planner, work)
    before: list[str] = []
    with_upload: list[str] = []
    for name, other in (("q", by_links), ("work", by_work)):
        if _differ(base[0], other[0]) or _differ(base[1], other[1]):
            before.append(name)
    if dry_run(planner, num_rounds=1)[0].questions:
        before = [*(name for name in before if name != "work"), "answers"]
    traits = planner.algorithm.aggregator.traits
    memory = _MEMORY[traits.keeps]
    if not memory:
        with_upload = [n for n, other in (("q", by_links), ("work", by_work)) if _differ(base[2], other[2])]
        if "q" in with_upload or (not with_upload and _differ(base[2], np.ones(len(tilt)))):
            with_upload.append("name")
    moments = not memory and traits.moments
    if moments:
        memory = "server moments"
    stale = planner.algorithm.sampling.traits.asynchronous or (moments and traits.linear)
    return Needs(tuple(before), tuple(with_upload), memory, stale, anonymous=moments)


def _factors(planner: Planner, conditions: Conditions) -> tuple[Vector, Vector, Vector]:
    """Return p, the factors of the drawn clients and those of the aggregator, before anything was learned."""
    system = replace(planner.system, schedule=GivenConditions([conditions]))
    plans = planner_of(copy.deepcopy(planner.algorithm), system, planner.weights, planner.learning_rate)
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
