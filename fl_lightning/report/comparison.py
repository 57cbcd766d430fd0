"""A comparison: runs grouped by algorithm, the reference, the targets."""

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fl_lightning.report import statistics
from fl_lightning.report.statistics import Band, Cost, Paired, Spread
from fl_lightning.runs.reading import Problem, Run
from fl_lightning.theory.checks import Vector

AXES = {"round": "rounds", "local_steps": "local steps", "computation_time": "simulated computation time (s)"}
COSTS = {
    "local_steps": "local steps",
    "computation_time": "computation (s)",
    "synchronous_time": "time on the clock (s)",
    "uplink_bytes": "bytes uploaded",
}
METRICS = {"test_accuracy": "test accuracy", "distance": "distance to the optimum", "test_loss": "test loss"}


def is_maximised(metric: str, runs: Sequence[Run] = ()) -> bool:
    """Return whether more of a metric is better: as the runs' ``loop.mode`` says of it, else for accuracies.

    >>> is_maximised("val_accuracy"), is_maximised("test_loss")
    (True, False)
    """
    said = {run.summary.mode for run in runs if run.summary.monitor == metric} & {"max", "min"}
    return said == {"max"} if len(said) == 1 else metric.endswith("accuracy")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One algorithm with its runs, ascending by seed, and the metric by which it is compared: all of them have it."""

    name: str
    runs: tuple[Run, ...]
    metric: str
    maximised: bool

    def final(self, metric: str) -> dict[int, float]:
        """Return the last evaluated value of each seed."""
        return {run.seed: _last(run.metrics.get(metric)) for run in self.runs}

    @property
    def epsilon(self) -> float:
        """Epsilon of a private run, the largest of all seeds; NaN where a run is not private."""
        known = [run.summary.epsilon for run in self.runs if run.summary.epsilon is not None]
        return max(known) if len(known) == len(self.runs) else math.nan

    def best(self) -> dict[int, float]:
        """Return the best value of each seed."""
        choose = np.nanmax if self.maximised else np.nanmin
        return {run.seed: float(choose(run.metrics[self.metric])) for run in self.runs}

    def late(self) -> dict[int, float]:
        """Return the mean over the last fifth of the rounds of each seed: one round alone is a noisy measure."""
        return {run.seed: statistics.late_mean(run.metrics["round"], run.metrics[self.metric]) for run in self.runs}

    def reached(self, target: float, axis: str) -> dict[int, float | None]:
        """Return what each seed had spent when it first reached the target; None for never."""
        reaches = operator.ge if self.maximised else operator.le
        spent: dict[int, float | None] = {}
        for run in self.runs:
            there = np.flatnonzero(reaches(run.metrics[self.metric], target))
            spent[run.seed] = float(run.metrics[axis][there[0]]) if len(there) else None
        return spent

    def at_cost(self, axis: str, metric: str, cost: float) -> dict[int, float]:
        """Return the metric of each seed when it had spent this much, between evaluations on a line."""
        return {seed: statistics.at_cost(x, y, cost) for seed, (x, y) in self._curves(axis, metric).items()}

    def band(self, axis: str, metric: str, num_points: int) -> Band:
        """Return a metric along an axis, over the seeds."""
        return statistics.band(list(self._curves(axis, metric).values()), num_points)

    def _curves(self, axis: str, metric: str) -> dict[int, tuple[Vector, Vector]]:
        known = [run for run in self.runs if axis in run.metrics and metric in run.metrics]
        return {run.seed: (run.metrics[axis], run.metrics[metric]) for run in known}

    def client_mean(self, column: str) -> Vector:
        """Return a column of ``clients.csv``, averaged over the seeds."""
        return _mean_row([run.clients[column] for run in self.runs if column in run.clients])

    @cached_property
    def ratios(self) -> Vector:
        """Omega / w of each client, 1 where nothing was asked for; empty where the runs do not know it."""
        weight, effective = self.client_mean("weight"), self.client_mean("effective_weight")
        if len(weight) != len(effective) or not np.isfinite(effective).all():
            return np.empty(0)
        return np.divide(effective, weight, out=np.ones_like(weight), where=weight > 0)

    @cached_property
    def class_accuracy(self) -> Vector:
        """Final accuracy of each class, averaged over the seeds."""
        return _mean_row([run.summary.per_class_accuracy or [] for run in self.runs])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All algorithms, best first."""

    entries: tuple[Entry, ...]
    reference: Entry
    metric: str
    maximised: bool  # whether more of the metric is better
    targets: tuple[float, ...]

    @property
    def metric_name(self) -> str:
        """The metric in words."""
        return METRICS.get(self.metric, self.metric.replace("_", " "))

    @property
    def seeds(self) -> list[int]:
        """All seeds that any algorithm has."""
        return sorted({run.seed for run in self.runs})

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for entry in self.entries for run in entry.runs]

    @property
    def private(self) -> bool:
        """Whether any algorithm has an epsilon."""
        return any(not math.isnan(entry.epsilon) for entry in self.entries)

    @property
    def data(self) -> str:
        """The data set's name."""
        return self.entries[0].runs[0].data

    def spread(self, entry: Entry) -> Spread:
        """Return mean and deviation of the final metric."""
        return statistics.spread(entry.final(self.metric).values())

    def paired(self, entry: Entry) -> Paired:
        """Return the final metric's differences to the reference."""
        return statistics.paired(entry.final(self.metric), self.reference.final(self.metric))

    @property
    def late_words(self) -> str:
        """The last fifth of the rounds in words."""
        counts = {statistics.num_late(run.metrics["round"]) for run in self.runs}
        return f"last {counts.pop()} rounds" if len(counts) == 1 else "last fifth of rounds"

    def cost(self, entry: Entry, target: float, axis: str) -> Cost:
        """Return what it took to reach a target."""
        return statistics.cost(entry.reached(target, axis), self.reference_for(target).reached(target, axis))

    def reference_for(self, target: float) -> Entry:
        """Return what costs are divided by: the reference, or if it never got there, whoever did most cheaply."""

        def rank(entry: Entry) -> tuple[int, float]:
            known = [value for value in entry.reached(target, "local_steps").values() if value is not None]
            return -len(known), sum(known) / len(known) if known else math.inf

        cheapest = min(self.entries, key=rank)
        return cheapest if rank(cheapest)[0] and not rank(self.reference)[0] else self.reference

    @cached_property
    def equal_costs(self) -> dict[str, float]:
        """The most of each cost that every run has spent at an evaluation; only costs that all runs count."""
        costs = {}
        for axis in COSTS:
            tables = [run.metrics for run in self.runs if axis in run.metrics]
            ends = [table[axis][~np.isnan(table[self.metric])][-1] for table in tables]
            if len(ends) == len(self.runs) and 0 < min(ends) < math.inf:
                costs[axis] = float(min(ends))
        return costs

    @cached_property
    def differences(self) -> dict[str, dict[str, object]]:
        """The settings in which the algorithms differ: key, then algorithm, then value."""
        settings = {entry.name: entry.runs[0].settings for entry in self.entries}
        keys = _different(list(settings.values()))
        return {key: {name: table.get(key) for name, table in settings.items()} for key in keys}

    @cached_property
    def unpaired(self) -> list[str]:
        """Algorithms that the system offered other conditions (T, q, data sizes) than the reference under one seed."""
        own = {run.seed: run for run in self.reference.runs}
        pairs = {entry.name: [(run, own[run.seed]) for run in entry.runs if run.seed in own] for entry in self.entries}
        return [name for name, runs in pairs.items() if any(_met_other_conditions(*pair) for pair in runs)]


def offered(run: Run) -> dict[str, Vector]:
    """Return data sizes, q and T of all clients as far as known; T is what they could do, before any limit on work."""
    names = {"size": "size", "num_steps": "num_steps", "failure_rate": "failure_rate"}
    if run.settings.get("loop.max_local_steps") is not None:
        names["num_steps"] = "offered_steps"  # which a run of before did not write
    return {name: run.clients[column] for name, column in names.items() if column in run.clients}


def _met_other_conditions(run: Run, other: Run) -> bool:
    if len(run.metrics["round"]) != len(other.metrics["round"]):
        return False
    mine, others = offered(run), offered(other)
    return any(not np.array_equal(mine[name], others[name]) for name in mine.keys() & others.keys())


def _last(values: Vector | None) -> float:
    known = values[~np.isnan(values)] if values is not None else np.empty(0)
    return float(known[-1]) if len(known) else math.nan


def _mean_row(rows: Sequence[npt.ArrayLike]) -> Vector:
    """Return the mean of rows of one length, empty ones left out; nothing where their lengths differ."""
    known = [np.asarray(row, dtype=np.float64) for row in rows if np.size(row)]
    return np.mean(known, axis=0) if len({len(row) for row in known}) == 1 else np.empty(0)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _different(tables: Sequence[Mapping[str, object]]) -> list[str]:
    keys = sorted({key for table in tables for key in table})
    return [key for key in keys if len({_text(table.get(key)) for table in tables}) > 1]


def grouped(runs: Sequence[Run], metric: str) -> list[Entry]:
    """Return one entry for each algorithm; the same name with other settings gets them into its name."""
    variants: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        variants.setdefault(run.algorithm, {}).setdefault(_text(run.settings), []).append(run)
    maximised = is_maximised(metric, runs)
    entries = []
    for algorithm, by_settings in variants.items():
        different = _different([members[0].settings for members in by_settings.values()])[:3]
        for members in by_settings.values():
            values = {key.rpartition(".")[2]: _short(members[0].settings.get(key)) for key in different}
            name = " ".join([algorithm, *(f"{key}={value}" for key, value in values.items())])
            ordered = tuple(sorted(members, key=lambda run: run.seed))
            entries.append(Entry(name=name, runs=ordered, metric=metric, maximised=maximised))
    return entries


def _short(value: object) -> str:
    return str(value).rpartition(".")[2] if isinstance(value, str) else _text(value)


def default_targets(entries: Sequence[Entry]) -> tuple[float, ...]:
    """Return the configured target, and the highest tenth below it that at least half of the algorithms always reach.

    The second one is chosen by all algorithms together, not by the reference, and keeps the table from being empty; it
    is for metrics that are shares, such as accuracies.
    """
    metric, runs = entries[0].metric, [run for entry in entries for run in entry.runs]
    of_metric = [run.summary for run in runs if run.summary.metric == metric.removeprefix("test_")]
    targets = sorted({summary.target for summary in of_metric if summary.target is not None})
    values = np.concatenate([run.metrics[metric] for run in runs])
    if not entries[0].maximised or np.nanmin(values) < 0 or np.nanmax(values) > 1:
        return tuple(targets)
    limit = targets[0] if targets else 1.0
    for step in range(9, 0, -1):
        lower = step / 10
        always = sum(None not in entry.reached(lower, "round").values() for entry in entries)
        if lower < limit and 2 * always >= len(entries):
            return (lower, *targets)
    return tuple(targets)


def _metrics(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the metrics by which runs may be compared, the most wanted first, each with the runs that have it."""
    names = [name for name in dict.fromkeys(run.summary.monitor for run in runs) if name]
    wanted = dict.fromkeys([*(names if len(names) == 1 else []), *METRICS])
    return {name: [run for run in runs if not math.isnan(_last(run.metrics.get(name)))] for name in wanted}


def with_common_metric(runs: Sequence[Run]) -> tuple[list[Run], list[Problem]]:
    """Leave out runs that lack what most others have, where no metric is common to all."""
    having = _metrics(runs)
    metric = max(having, key=lambda name: len(having[name]))
    if any(len(each) == len(runs) for each in having.values()) or 2 * len(having[metric]) <= len(runs):
        return list(runs), []
    lacking = [run for run in runs if run not in having[metric]]
    return having[metric], [Problem(run.folder, f"it has no {metric}, which the other runs have") for run in lacking]


def compare(runs: Sequence[Run], reference: str = "fedacs", targets: Sequence[float] = ()) -> Comparison:
    """Group the runs and rank the algorithms by their final metric.

    Raises:
        ValueError: There are no runs, or they have no metric in common.
    """
    if not runs:
        raise ValueError("there is no finished run to report")
    having = _metrics(runs)
    metric = next((name for name, known in having.items() if len(known) == len(runs)), None)
    if metric is None:
        raise ValueError(f"the runs have no metric in common: wanted one of {', '.join(having)}")
    entries = grouped(runs, metric)
    maximised = entries[0].maximised
    sign = -1 if maximised else 1
    entries.sort(key=lambda entry: (sign * statistics.spread(entry.final(metric).values()).mean, entry.name))
    named = [entry for entry in entries if entry.name == reference]
    named += [entry for entry in entries if entry.runs[0].algorithm == reference]
    return Comparison(
        entries=tuple(entries),
        reference=named[0] if named else min(entries, key=lambda entry: entry.name),
        metric=metric,
        maximised=maximised,
        targets=tuple(targets) or default_targets(entries),
    )
