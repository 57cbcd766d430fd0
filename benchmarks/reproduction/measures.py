"""The numbers behind the tables: ends of runs, costs to a target, and differences between runs of the same seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.reproduction.runs import Run, Vector

LAST = 0.2  # share of the rounds at the end over which accuracies are averaged
By = dict[int, float]  # a number for each seed


@dataclass(frozen=True)
class Paired:
    """The mean of differences between runs of the same seed, with its standard error."""

    mean: float
    error: float  # NaN for a single seed
    count: int


def by_algorithm(runs: list[Run]) -> dict[str, list[Run]]:
    """Return the runs of each algorithm."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.algorithm, []).append(run)
    return found


def end(run: Run, curve: str) -> float:
    """Return the mean of a curve (``accuracy`` or ``averaged``) over the last fifth of the rounds."""
    values: Vector = getattr(run, curve)
    return float(values[run.evaluated > (1 - LAST) * run.rounds].mean())


def ends(runs: list[Run], curve: str) -> By:
    """Return the ends of several runs by their seed."""
    return {run.seed: end(run, curve) for run in runs}


def to_target(run: Run, curve: str, cost: str) -> float:
    """Return the rounds (``evaluated``) or local ``steps`` until a curve first reaches the target; inf for never."""
    reached = np.flatnonzero(getattr(run, curve) >= run.target)
    return float(getattr(run, cost)[reached[0]]) if len(reached) else float("inf")


def at_steps(run: Run, budget: float, curve: str = "averaged") -> float:
    """Return a curve at the last evaluation within a budget of local steps; NaN where there is none."""
    within = np.flatnonzero(run.steps <= budget)
    return float(getattr(run, curve)[within[-1]]) if len(within) else float("nan")


def at_equal_work(runs: list[Run], reference: list[Run]) -> By:
    """Return for each seed the averaged accuracy with the local steps that the reference needed for its whole run."""
    budgets = {run.seed: float(run.steps[-1]) for run in reference}
    found = {run.seed: at_steps(run, budgets[run.seed]) for run in runs if run.seed in budgets}
    return {seed: value for seed, value in found.items() if not np.isnan(value)}


def paired(values: By, reference: By) -> Paired:
    """Return the mean difference to a reference over the seeds that both have.

    >>> paired({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.5, 2: 0.25})
    Paired(mean=0.125, error=0.125, count=2)
    """
    seeds = sorted(values.keys() & reference.keys())
    differences = np.array([values[seed] - reference[seed] for seed in seeds])
    if not seeds:
        return Paired(float("nan"), float("nan"), 0)
    error = float(differences.std(ddof=1)) / len(seeds) ** 0.5 if len(seeds) > 1 else float("nan")
    return Paired(float(differences.mean()), error, len(seeds))


def at_clock(run: Run, seconds: float, curve: str = "averaged") -> float:
    """Return a curve after some seconds on the clock, on the straight line between the evaluations around them.

    NaN where the run was not evaluated by then, or ended before.
    """
    if not len(run.clock):
        return float("nan")
    return float(np.interp(seconds, run.clock, getattr(run, curve), left=np.nan, right=np.nan))


def leaders(values: Mapping[str, By]) -> set[str]:
    """Return the algorithms that are first, or within one standard error of the first, paired by seed.

    The first, seen from an algorithm, is who is farthest ahead of it on the seeds that both have. One seed has no
    error, so an algorithm with a single one is left out where others have more.

    >>> sorted(leaders({"a": {0: 0.9, 1: 0.5}, "b": {0: 0.8, 1: 0.7, 2: 0.1}, "c": {0: 0.5, 1: 0.3}, "d": {0: 1.0}}))
    ['a', 'b']
    """
    enough = min(2, max((len(each) for each in values.values()), default=0))
    full = {name: each for name, each in values.items() if len(each) >= enough > 0}
    return {name for name in full if not _behind(name, full, enough)}


def _behind(name: str, values: Mapping[str, By], enough: int) -> bool:
    gaps = [paired(each, values[name]) for rival, each in values.items() if rival != name]
    first = max((gap for gap in gaps if gap.count >= enough), key=lambda gap: gap.mean, default=Paired(0.0, 0.0, 0))
    return first.mean > (0.0 if math.isnan(first.error) else first.error)


def best_rates(readings: Mapping[float, list[Run]]) -> dict[str, tuple[float, list[Run]]]:
    """Return for each algorithm its best learning rate and its runs with it, chosen on other seeds than reported.

    Algorithms that were not run at all rates are left out. Of the seeds that one has at all rates the first decides, by
    the averaged accuracy at the end; the others are returned. With one seed alone, that one is returned.
    """
    chosen = {}
    for name in sorted({run.algorithm for runs in readings.values() for run in runs}):
        found = {lr: {run.seed: run for run in runs if run.algorithm == name} for lr, runs in readings.items()}
        seeds = sorted(set.intersection(*(set(runs) for runs in found.values())))
        if not seeds:
            continue
        lr = max(found, key=lambda rate: end(found[rate][seeds[0]], "averaged"))
        chosen[name] = (lr, [found[lr][seed] for seed in seeds[1:] or seeds])
    return chosen
