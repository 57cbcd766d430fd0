"""The table at the end of a comparison: what each algorithm reached and what it spent, over the seeds."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.report.comparison import Comparison, Entry

_COSTS = {"round": "rounds", "computation_time": "computation", "synchronous_time": "synchronous"}


def print_outcome(folder: Path) -> None:
    """Print the table of the finished runs below a folder; nothing where they cannot be compared."""
    from rich.console import Console

    from fl_lightning.report import comparison
    from fl_lightning.runs import reading as loading

    runs, _ = loading.load_all([folder])
    try:
        compared = comparison.compare(runs)
    except ValueError:
        return
    Console(width=None if sys.stdout.isatty() else 100).print(outcome_table(compared))


def outcome_table(compared: "Comparison") -> Any:
    """Return the table, best first."""
    from rich import box
    from rich.table import Table

    target = max(compared.targets) if compared.targets and compared.metric == "test_accuracy" else None
    costs = {} if target is None else {axis: name for axis, name in _COSTS.items() if _has(compared, axis)}
    note = "mean ± standard deviation over seeds of the last fifth of the rounds"
    if target is not None:
        note += f"; cost until {target:g}: mean over the seeds that reached it, in simulated seconds but for rounds"
    table = Table(caption=note, caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    for name in (compared.metric_name, *(("reached",) if costs else ()), *costs.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in compared.entries:
        table.add_row(*_row(compared, entry, target, list(costs)))
    return table


def _has(compared: "Comparison", axis: str) -> bool:
    return all(axis in run.metrics for run in compared.runs)


def _row(compared: "Comparison", entry: "Entry", target: float | None, axes: list[str]) -> list[str]:
    from fl_lightning.report.statistics import spread

    values = spread(list(entry.late(compared.metric).values()))
    deviation = "" if math.isnan(values.deviation) else f" ± {values.deviation:.3f}"
    cells = [entry.name, f"{values.mean:.3f}{deviation}"]
    if target is None or not axes:
        return cells
    spent = {axis: [value for value in entry.reached(target, axis).values() if value is not None] for axis in axes}
    means = [f"{sum(known) / len(known):,.0f}" if known else "-" for known in spent.values()]
    return [*cells, f"{len(spent[axes[0]])}/{len(entry.runs)}", *means]
