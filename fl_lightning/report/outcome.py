"""What became of a comparison: its runs, read once, the files of its report, and the table of what each reached."""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.figures.style import NotInstalledError
from fl_lightning.output import write_durably
from fl_lightning.report.comparison import Comparison, compare, with_common_metric
from fl_lightning.report.figures import write_figures
from fl_lightning.report.page import page
from fl_lightning.report.statistics import spread
from fl_lightning.report.tables import all_tables
from fl_lightning.runs.reading import Problem, Run, load_all

if TYPE_CHECKING:
    from rich.table import Table

_LOG = logging.getLogger("fl_lightning")
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
        """Write the page, the tables and, if wanted, the figures; return the files.

        What cannot be made without a package is left out, with a warning that says how to install it.
        """
        for name in ("tables", "figures", "wandb"):
            if (out / name).is_symlink():
                link = os.readlink(out / name)
                raise ValueError(f"{out / name} is a link to {link}: remove it, or give another --out")
        (out / "tables").mkdir(parents=True, exist_ok=True)
        texts = {}
        with _if_installed("page"):
            texts[out / "index.html"] = page(self.comparison, self.problems)
        for table in all_tables(self.comparison):
            stem = out / "tables" / table.name
            texts[stem.with_suffix(".csv")] = table.to_csv()
            texts[stem.with_suffix(".md")] = table.to_markdown()
            texts[stem.with_suffix(".tex")] = table.to_latex()
        for path, text in texts.items():
            write_durably(path, text.encode())
        files = list(texts)
        if figures:
            with _if_installed("figures"):
                files += write_figures(self.comparison, out / "figures")
        return files


@contextmanager
def _if_installed(what: str) -> Iterator[None]:
    try:
        yield
    except NotInstalledError as error:
        _LOG.warning("no %s: %s", what, error)


def load(
    folders: Sequence[Path], warn: Callable[[str], None], reference: str = "fedacs", targets: Sequence[float] = ()
) -> Outcome:
    """Read and compare the runs at and below some folders; warn of what is left out, and of another reference.

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

    counted = {axis: name for axis, name in _COSTS.items() if all(axis in run.metrics for run in compared.runs)}
    costs = counted if compared.targets else {}
    note = "mean ± standard deviation over seeds of the last fifth of the rounds"
    target = (max if compared.maximised else min)(compared.targets, default=math.nan)
    if compared.targets:
        note += f"; cost until {target:g}: mean over the seeds that reached it, in simulated seconds but for rounds"
    table = Table(caption=note, caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    for name in (compared.metric_name, *(("reached",) if costs else ()), *costs.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in compared.entries:
        values = spread(entry.late().values())
        deviation = "" if math.isnan(values.deviation) else f" ± {values.deviation:.3f}"
        spent = [compared.cost(entry, target, axis) for axis in costs]
        reached = [f"{cost.reached}/{cost.count}" for cost in spent[:1]]
        means = ["-" if math.isnan(cost.mean) else f"{cost.mean:,.0f}" for cost in spent]
        table.add_row(entry.name, f"{values.mean:.3f}{deviation}", *reached, *means)
    return table
