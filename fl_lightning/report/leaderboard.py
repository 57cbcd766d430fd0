"""The leaderboard of a suite: one row for each run, and a table for each data set and system."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

import numpy as np

from fl_lightning.report import statistics
from fl_lightning.report.comparison import is_maximised
from fl_lightning.report.page import render
from fl_lightning.report.tables import Table, count, number, plus_minus
from fl_lightning.runs.reading import Problem, Run, load_all
from fl_lightning.theory.checks import Vector

Key = TypeVar("Key")
_UNIT = 10_000  # of the metric along a run
_NOTE = (
    "Bold: the best, and who is not behind it by more than one standard error of the paired difference. Metric: mean "
    "over the last fifth of the rounds, ± standard deviation over seeds, of the model of the round and of the one "
    "averaged over rounds; differences, of the model of the round, are paired by seed with Student's 95 % interval. "
    "Worst tenth: of the clients, on their own held-out data, after the last round. At N s: where all runs of this "
    "table have spent the same time on the clock."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a leaderboard needs of one run."""

    data: str
    system: str
    algorithm: str
    seed: int
    rounds: int
    metric: str
    mode: str  # max | min
    value: float  # of the metric, mean over the last fifth of the rounds
    worst: float  # of the clients' own metric, worst tenth of them; NaN where it was not measured
    local_steps: float
    seconds: float  # on the clock
    uplink_bytes: float
    curve: str  # of the metric, in units of 0.0001
    clock: str  # seconds at these evaluations
    averaged: float = math.nan  # as value, of the model averaged over rounds; NaN where it is not known

    @property
    def cell(self) -> tuple[str, str]:
        """Data set and system."""
        return self.data, self.system


def row_of(run: Run, system: str) -> Row:
    """Return the row of a finished run."""
    metric, table = run.summary.monitor or "test_accuracy", run.metrics
    short = metric.removeprefix("test_")
    values = table[metric]
    seen = ~np.isnan(values)
    unknown = np.full(len(values), np.nan)
    clock = table.get("synchronous_time", unknown)
    worst = table.get(f"client_{short}_worst", unknown)
    return Row(
        data=run.data,
        system=system,
        algorithm=run.algorithm,
        seed=run.seed,
        rounds=len(values),
        metric=metric,
        mode="max" if is_maximised(metric, [run]) else "min",
        value=round(statistics.late_mean(table["round"], values), 5),
        worst=round(float(worst[-1]), 5),
        local_steps=float(table["local_steps"][-1]),
        seconds=round(float(clock[-1]), 1),
        uplink_bytes=float(table["uplink_bytes"][-1]) if "uplink_bytes" in table else math.nan,
        curve=_numbers(values[seen] * _UNIT),
        clock=_numbers(clock[seen]),
        averaged=round(statistics.late_mean(table["round"], table.get(f"averaged_{short}", unknown)), 5),
    )


def collect(folder: Path) -> tuple[list[Row], list[Problem]]:
    """Return the rows of finished runs below a folder, DATA_SYSTEM/ALGORITHM/seed_N, and what is left out."""
    rows: list[Row] = []
    problems: list[Problem] = []
    for cell in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*/seed_*"))):
        runs, left_out = load_all([cell])
        rows += [row_of(run, cell.name.rpartition("_")[2]) for run in runs]
        problems += left_out
    return rows, problems


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Store rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Return stored rows.

    Raises:
        ValueError: If the file is no such table.
    """
    kinds: dict[str, type] = {each.name: each.type for each in fields(Row)}  # type: ignore[misc]
    try:
        with path.open(newline="") as file:
            return [Row(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no table of a leaderboard ({error}): use one that `suite` has written") from None


def merged(stored: Iterable[Row], fresh: Iterable[Row]) -> list[Row]:
    """Return stored and fresh rows together; of two of the same run the fresh one stays."""
    found = {(*row.cell, row.algorithm, row.seed): row for row in [*stored, *fresh]}
    return [found[key] for key in sorted(found)]


def cell_table(rows: Sequence[Row], reference: str) -> Table:
    """Return the table of one data set and system, best first."""
    by_name = _by(rows, lambda row: row.algorithm)
    values, sign = _values(rows)
    order = _ranked(values, sign)
    best = leaders(values, sign)
    time = min(row.seconds for row in rows)
    lines: list[tuple[str, ...]] = []
    for name in order:
        runs = by_name[name]
        pair = statistics.paired(values[name], values.get(reference, {}))
        timely = statistics.spread(_at(row, time) for row in runs).mean
        costs = ("seconds", "uplink_bytes", "local_steps")
        seconds, uplink, steps = (float(np.mean([vars(row)[name] for row in runs])) for name in costs)
        worst = statistics.spread(row.worst for row in runs).mean
        shown = plus_minus(statistics.spread(values[name].values()))
        interval = "" if math.isnan(pair.low) else f" [{number(pair.low, sign=True)}, {number(pair.high, sign=True)}]"
        against = "" if name == reference else number(pair.mean, sign=True) + interval
        mark = f"**{shown}**" if name in best else shown
        paid = (count(seconds), number(uplink / 1e6, 1), count(steps))
        averaged = number(statistics.spread(row.averaged for row in runs).mean)
        lines.append((f"`{name}`", mark, averaged, against, number(timely), number(worst), *paid))
    metric = rows[0].metric.removeprefix("test_").replace("_", " ")
    measured = (f"{metric}{' (lower is better)' * (sign < 0)}", "averaged model")
    seeds, rounds = len({row.seed for row in rows}), sorted({row.rounds for row in rows})
    return Table(
        name="_".join(rows[0].cell),
        title=f"{rows[0].data} on {rows[0].system}: {seeds} seeds, {', '.join(map(str, rounds))} rounds",
        header=(
            *("algorithm", *measured, f"− {reference}", f"at {count(time)} s"),
            *("worst tenth", "seconds", "MB up", "local steps"),
        ),
        rows=tuple(lines),
    )


def summary_table(rows: Sequence[Row]) -> Table:
    """Return the mean rank of each algorithm over all data sets and systems, and where it is among the best."""
    cells = _by(rows, lambda row: row.cell)
    of_round, of_average = (_standings(cells.values(), what) for what in ("value", "averaged"))
    order = sorted(of_round, key=lambda name: (float(np.mean(of_round[name][0])), name))
    lines = [(f"`{name}`", *_standing(*of_round[name]), *_standing(*of_average[name])) for name in order]
    return Table(
        name="summary",
        title=f"All {len(cells)} pairs of data set and system",
        header=("algorithm", "mean rank", "among the best", "mean rank, averaged model", "among the best, averaged"),
        rows=tuple(lines),
        note=_NOTE,
    )


def _standings(cells: Iterable[Sequence[Row]], what: str) -> dict[str, tuple[list[int], int]]:
    """Return the ranks of each algorithm and how often it is among the best."""
    ranks: dict[str, list[int]] = {}
    leads: Counter[str] = Counter()
    for each in cells:
        values, sign = _values(each, what)
        leads.update(leaders(values, sign))
        for place, name in enumerate(_ranked(values, sign), 1):
            ranks.setdefault(name, []).append(place)
    return {name: (places, leads[name]) for name, places in ranks.items()}


def _standing(ranks: Sequence[int], leads: int) -> tuple[str, str]:
    return f"{np.mean(ranks):.1f}", f"{leads} of {len(ranks)}"


def _values(rows: Sequence[Row], what: str = "value") -> tuple[dict[str, dict[int, float]], int]:
    """Return the metric by algorithm and seed, and 1 where more of it is better, else -1; rows may lack the average."""
    values = {
        name: {row.seed: row.value if math.isnan(vars(row)[what]) else vars(row)[what] for row in runs}
        for name, runs in _by(rows, lambda row: row.algorithm).items()
    }
    return values, 1 if rows[0].mode == "max" else -1


def _ranked(values: Mapping[str, Mapping[int, float]], sign: int) -> list[str]:
    return sorted(values, key=lambda name: (-sign * statistics.spread(values[name].values()).mean, name))


def leaders(values: Mapping[str, Mapping[int, float]], sign: int) -> set[str]:
    """Return the best, and who is not behind it by more than one standard error of the paired difference.

    >>> sorted(leaders({"a": {0: 0.9, 1: 0.8}, "b": {0: 0.8, 1: 0.85}, "c": {0: 0.1, 1: 0.1}}, 1))
    ['a', 'b']
    """
    first = max(values, key=lambda name: sign * statistics.spread(values[name].values()).mean)
    found = {first}
    for name, own in values.items():
        behind = -sign * statistics.paired(own, values[first]).differences
        if len(behind) > 1 and behind.mean() <= behind.std(ddof=1) / math.sqrt(len(behind)):
            found.add(name)
    return found


def tables(rows: Sequence[Row], reference: str) -> list[Table]:
    """Return the summary and the table of each data set and system."""
    return [summary_table(rows), *(cell_table(each, reference) for each in _by(rows, lambda row: row.cell).values())]


def to_markdown(made: Sequence[Table]) -> str:
    """Return all tables as Markdown."""
    return "\n".join(table.to_markdown().rstrip() + "\n" for table in made)


def to_html(title: str, made: Sequence[Table], pages: Mapping[str, str]) -> str:
    """Return a page of all tables; each links to the report of its runs where there is one."""
    return render("leaderboard", {"title": title, "made": made, "pages": pages})


def _by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _at(row: Row, seconds: float) -> float:
    values, clock = (np.array([float(word) for word in text.split()]) for text in (row.curve, row.clock))
    return statistics.at_cost(clock, values / _UNIT, min(seconds, float(clock[-1])))


def _numbers(values: Vector) -> str:
    return " ".join(f"{value:.0f}" for value in values)
