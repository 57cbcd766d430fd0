"""What became of a comparison: its runs, read once, and the table of what each algorithm reached and spent."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.report.comparison import Comparison, Entry, compare, with_common_metric
from fl_lightning.report.statistics import spread
from fl_lightning.report.tables import all_tables
from fl_lightning.report.writing import write
from fl_lightning.runs.reading import Problem, Run, load_all

if TYPE_CHECKING:
    from rich.table import Table

_COSTS = {"round": "rounds", "computation_time": "computation", "synchronous_time": "synchronous"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Runs that were compared, and folders that could not be."""

    comparison: Comparison
    problems: list[Problem]

    @property
    def logged(self) -> bool:
        """Whether any of the runs was logged to W&B."""
        return any("wandb" in str(run.config.get("logger")) for run in self.comparison.runs)

    def write(self, out: Path, figures: bool = True) -> list[Path]:
        """Write the page, the tables and, if wanted, the figures; return the files."""
        return write(self.comparison, self.problems, out, figures)


def load(
    folders: Sequence[Path], warn: Callable[[str], None], reference: str = "fedacs", targets: Sequence[float] = ()
) -> Outcome:
    """Read and compare the runs at and below some folders.

    Args:
        folders: Of runs, or with runs in them.
        warn: Takes in words what is left out, and another reference than the one asked for.
        reference: The algorithm that the others are compared with.
        targets: Accuracies whose cost is reported; by default those of the configs.

    Raises:
        ValueError: There is no finished run, or they have no metric in common.
    """
    runs, problems = load_all(folders)
    runs, lacking = with_common_metric(runs)
    runs, broken = _presentable(runs)
    problems = [*problems, *lacking, *broken]
    for problem in problems:
        warn(str(problem))
    compared = compare(runs, reference, targets)
    found = compared.reference
    if reference not in (found.name, found.runs[0].algorithm):
        warn(f"no run of {reference}: the others are compared with {found.name}")
    return Outcome(comparison=compared, problems=problems)


def _presentable(runs: list[Run]) -> tuple[list[Run], list[Problem]]:
    """Leave out runs that no page can be made of; each is looked at alone only if they fail together."""
    if not runs or _error(runs) is None:
        return runs, []
    errors = [(run, _error([run])) for run in runs]
    problems = [Problem(run.folder, f"no report can be made of it ({error})") for run, error in errors if error]
    return [run for run, error in errors if error is None], problems


def _error(runs: list[Run]) -> str | None:
    """Return what goes wrong where the tables of runs are made, or nothing."""
    try:
        all_tables(compare(runs))
    except Exception as error:  # numbers that no run writes can go wrong in any way
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return None


def outcome_table(compared: Comparison) -> "Table":
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


def _has(compared: Comparison, axis: str) -> bool:
    return all(axis in run.metrics for run in compared.runs)


def _row(compared: Comparison, entry: Entry, target: float | None, axes: list[str]) -> list[str]:
    values = spread(list(entry.late(compared.metric).values()))
    deviation = "" if math.isnan(values.deviation) else f" ± {values.deviation:.3f}"
    cells = [entry.name, f"{values.mean:.3f}{deviation}"]
    if target is None or not axes:
        return cells
    spent = {axis: [value for value in entry.reached(target, axis).values() if value is not None] for axis in axes}
    means = [f"{sum(known) / len(known):,.0f}" if known else "-" for known in spent.values()]
    return [*cells, f"{len(spent[axes[0]])}/{len(entry.runs)}", *means]
