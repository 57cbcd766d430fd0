"""The picture of a reading: accuracy by rounds and by local steps, and of each class at the end."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.reproduction import measures
from benchmarks.reproduction.runs import Run, Vector
from fl_lightning.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, RULE, bare, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"fedavg": ORANGE, "fedacs": BLUE, "limitedfedacs": PURPLE, "fedacscv": GREEN}
LABELS = {"fedavg": "FedAvg", "fedacs": "FedACS", "limitedfedacs": "limited FedACS", "fedacscv": "FedACS-CV"}


def draw(runs: list[Run], path: Path) -> None:
    """Draw a reading and save it as SVG, byte for byte the same for the same runs."""
    import matplotlib

    groups = {name: each for name, each in measures.by_algorithm(runs).items() if name in COLOURS}
    if not groups:
        raise ValueError(f"{path.name} shows {', '.join(COLOURS)}, but none of them is among the runs")
    with matplotlib.rc_context({"text.color": INK, "font.size": 9}):
        save(_figure(groups), path)


def _figure(groups: dict[str, list[Run]]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    target = next(iter(groups.values()))[0].target
    _curves(left, "accuracy by rounds", groups, "evaluated", target)
    _curves(middle, "accuracy by local steps of all clients", groups, "steps", target)
    left.set_ylabel("test accuracy", color=INK)
    left.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1), frameon=False, labelcolor="linecolor", fontsize=9)
    left.annotate(
        "thick: model averaged over rounds, band: all seeds\nthin: model of each round",
        (0.98, 0.02),
        xycoords="axes fraction",
        ha="right",
        fontsize=7.5,
    )
    _classes(right, groups)
    return figure


def _curves(axes: "Axes", title: str, groups: dict[str, list[Run]], x: str, target: float) -> None:
    last = 0.0
    for name, runs in groups.items():
        places, curves = _aligned(runs, x)
        averaged, colour = curves["averaged"], COLOURS[name]
        axes.fill_between(places, averaged.min(axis=0), averaged.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        axes.plot(places, averaged.mean(axis=0), color=colour, linewidth=2.2, label=LABELS[name])
        axes.plot(places, curves["accuracy"].mean(axis=0), color=colour, linewidth=0.8, alpha=0.75)
        last = max(last, float(places[-1]))
    axes.set_xlim(0, last)
    axes.set_ylim(0, 1)
    axes.axhline(target, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.text(
        0.99 * last, target - 0.015, f"target {target:.0%}".replace("%", " %"), ha="right", va="top", fontsize=7.5
    )
    _bare(axes, title)


def _aligned(runs: list[Run], x: str) -> tuple[Vector, dict[str, Vector]]:
    """Return the mean place of each evaluation over the seeds, and the curves of all seeds, (seeds, evaluations)."""
    length = min(len(run.evaluated) for run in runs)
    places = np.mean([getattr(run, x)[:length] for run in runs], axis=0)
    return places, {name: np.array([getattr(run, name)[:length] for run in runs]) for name in ("averaged", "accuracy")}


def _classes(axes: "Axes", groups: dict[str, list[Run]]) -> None:
    measured = all(len(run.averaged_classes) for runs in groups.values() for run in runs)
    what = "averaged_classes" if measured else "classes"
    for place, (name, runs) in enumerate(groups.items()):
        values = np.array([getattr(run, what) for run in runs if len(run.classes)])
        if not len(values):
            continue
        x = np.arange(values.shape[1]) + 0.18 * (place - (len(groups) - 1) / 2)
        axes.vlines(x, values.min(axis=0), values.max(axis=0), color=COLOURS[name], linewidth=1, alpha=0.6)
        axes.plot(x, values.mean(axis=0), "o", color=COLOURS[name], markersize=4)
        axes.set_xticks(np.arange(values.shape[1]))
        axes.set_xlim(-0.5, values.shape[1] - 0.5)
    axes.set_ylim(0, 1)
    _bare(axes, f"accuracy of each class, {'averaged model' if measured else 'model of the last round'}")


def _bare(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    bare(axes)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
