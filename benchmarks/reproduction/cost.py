"""Accuracy at equal time on the clock: the table and the picture of a reading with a budget of synchronous time."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.reproduction import measures, tables
from benchmarks.reproduction.runs import Run, Vector
from fl_lightning.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY, YELLOW, bare, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = (0.25, 0.5, 1.0)  # of the budget, at which the table looks
# Who waits is drawn with a line, who does not with dashes.
STYLES = {
    "fedavg": ("FedAvg", ORANGE, "-"),
    "fedacs": ("FedACS", BLUE, "-"),
    "fedacscv": ("FedACS-CV", GREEN, "-"),
    "limitedfedacs": ("limited FedACS", PURPLE, "-"),
    "overselection": ("over-selection", MUTED, "-"),
    "fedbuff": ("FedBuff", YELLOW, "--"),
    "consistentfedbuff": ("consistent FedBuff", SKY, "--"),
}


def table(runs: list[Run]) -> str:
    """Return the averaged model's accuracy after shares of the budget, and what was spent on the devices until then."""
    if not runs:
        return tables.MISSING
    budget = _budget(runs)
    groups = measures.by_algorithm(runs)
    after = [
        {name: {run.seed: measures.at_clock(run, share * budget) for run in each} for name, each in groups.items()}
        for share in SHARES
    ]
    best, ends = [measures.leaders(each) for each in after], after[-1]
    rows = [
        [
            f"`{name}`",
            *(tables.cell(each[name], name in bold) for each, bold in zip(after, best, strict=True)),
            "" if name == tables.REFERENCE else _difference(ends, name),
            f"{np.mean([_within(run, 'evaluated', budget) for run in groups[name]]):.0f}",
            tables.thousands(float(np.mean([_within(run, "steps", budget) for run in groups[name]]))),
            str(len(groups[name])),
        ]
        for name in sorted(groups, key=lambda name: -float(np.mean(list(ends[name].values()))))
    ]
    times = [f"after {share * budget:,.0f} s" for share in SHARES]
    header = ["algorithm", *times, "at the end - FedAvg's", "steps of the server", "local steps", "seeds"]
    return tables.markdown(header, rows)


def _budget(runs: list[Run]) -> float:
    budgets = {run.budget for run in runs}
    (budget,) = budgets
    if budget is None:
        raise ValueError("a cost table needs runs with --budget synchronous_time=SECONDS, and these have none")
    return budget


def _difference(ends: dict[str, measures.By], name: str) -> str:
    return tables.difference(measures.paired(ends[name], ends.get(tables.REFERENCE, {})))


def _within(run: Run, what: str, budget: float) -> float:
    values: Vector = getattr(run, what)
    return float(np.interp(budget, run.clock, values))


def draw(runs: list[Run], path: Path) -> None:
    """Draw the averaged model's accuracy by the clock, mean over the seeds with a band of all of them."""
    import matplotlib
    from matplotlib.figure import Figure

    budget = _budget(runs)
    with matplotlib.rc_context({"text.color": INK, "font.size": 9}):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        _curves(axes, measures.by_algorithm(runs), budget)
        axes.set_title("accuracy of the averaged model by seconds on the clock", loc="left", fontsize=9.5, color=INK)
        bare(axes)
        axes.grid(axis="y", color=RULE, linewidth=0.5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlim(0, budget)
        axes.set_ylim(0, 1)
        axes.legend(frameon=False, loc="lower right", labelcolor=INK)
        save(figure, path)


def _curves(axes: "Axes", groups: dict[str, list[Run]], budget: float) -> None:
    times = np.linspace(0, budget, 81)[1:]
    for name, (label, colour, line) in STYLES.items():
        curves = np.array([[measures.at_clock(run, time) for time in times] for run in groups.get(name, [])])
        if not len(curves):
            continue
        known = ~np.isnan(curves).any(axis=0)
        axes.fill_between(
            times[known], curves.min(axis=0)[known], curves.max(axis=0)[known], color=colour, alpha=0.12, linewidth=0
        )
        axes.plot(times[known], curves.mean(axis=0)[known], color=colour, linestyle=line, linewidth=1.8, label=label)
