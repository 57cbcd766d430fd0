"""Figure 4 and Table 2 of the paper as one picture: smoothed curves, and rounds to the target beside the printed."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.reproduction import measures
from benchmarks.reproduction.runs import Run
from benchmarks.reproduction.verdicts import PAPER
from fl_lightning.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY, YELLOW, bare, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 5  # evaluations of which the left side shows the mean
STYLES = {
    "fedacs": ("FedACS", BLUE, "-"),
    "fedavg": ("FedAvg", ORANGE, "-"),
    "cafedavg": ("c-a-FedAvg", YELLOW, "--"),
    "fedvarp": ("FedVARP", GREEN, "-"),
    "fednova": ("FedNova", PURPLE, "-"),
    "fedau": ("FedAU", SKY, "--"),
    "fedau_by_k": ("FedAU by K", SKY, ":"),
    "os": ("OS", MUTED, "-"),
}


def draw(runs: list[Run], path: Path) -> None:
    """Draw a reading whose name, the second part of the file's, begins with the data set."""
    import matplotlib
    from matplotlib.figure import Figure

    named = re.match(r"paper_([a-z]+)", path.stem)
    if named is None or named[1] not in PAPER:
        raise ValueError(f"{path.name} must be named paper_DATA..., with DATA one of {', '.join(PAPER)}")
    groups = {name: each for name, each in measures.by_algorithm(runs).items() if name in STYLES}
    with matplotlib.rc_context({"text.color": INK, "font.size": 9}):
        figure = Figure(figsize=(9.5, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
        _curves(left, groups)
        _rounds(right, named[1], groups)
        save(figure, path)


def _curves(axes: "Axes", groups: dict[str, list[Run]]) -> None:
    for name, (label, colour, line) in STYLES.items():
        for run in groups.get(name, [])[:1]:
            curves = [np.convolve(each.accuracy, np.full(WINDOW, 1 / WINDOW), "valid") for each in groups[name]]
            rounds = run.evaluated[WINDOW - 1 :]
            axes.plot(rounds, np.mean(curves, axis=0), color=colour, linestyle=line, linewidth=1.6, label=label)
            axes.axhline(run.target, color=INK, linewidth=0.6, linestyle=(0, (3, 3)))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="upper left", labelcolor=INK, fontsize=8)
    _finish(axes, f"test accuracy by rounds, mean of {WINDOW} evaluations and all seeds")
    axes.grid(axis="y", color=RULE, linewidth=0.5)


def _rounds(axes: "Axes", data: str, groups: dict[str, list[Run]]) -> None:
    last = max(run.rounds for runs in groups.values() for run in runs)
    never = 1.12 * last
    for place, (name, (_, colour, _)) in enumerate(STYLES.items()):
        printed = PAPER[data][name]
        axes.plot(never if printed is None else printed[0], place, "o", markersize=9, mfc="none", mec=INK, mew=1.2)
        found = [measures.to_target(run, "accuracy", "evaluated") for run in groups.get(name, [])]
        axes.plot([min(each, never) for each in found], [place] * len(found), "o", color=colour, markersize=4)
        if found and math.isfinite(np.mean(found)):
            axes.plot(np.mean(found), place, "|", color=colour, markersize=14, markeredgewidth=2)
    axes.set_yticks(range(len(STYLES)), [label for label, _, _ in STYLES.values()])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * last)
    axes.set_xticks([*range(0, last + 1, 50), never], [*map(str, range(0, last + 1, 50)), "never"])
    _finish(axes, "rounds to the target; circle: printed, dots: our seeds")
    axes.grid(axis="x", color=RULE, linewidth=0.5)


def _finish(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    bare(axes)
