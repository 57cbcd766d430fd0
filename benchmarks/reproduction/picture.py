"""The picture of a reading: accuracy by rounds and by local steps, and of each class at the end."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.reproduction import measures
from benchmarks.reproduction.runs import Run, Vector
from fl_lightning.figures.style import BLUE, GREEN, INK, ORANGE, RULE, bare, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"fedavg": ORANGE, "fedacs": BLUE, "fedacscv": GREEN}
LABELS = {"fedavg": "FedAvg", "fedacs": "FedACS", "fedacscv": "FedACS-CV"}


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
    tips = []
    for name, runs in groups.items():
        places, curves = _aligned(runs, x)
        averaged, colour = curves["averaged"], COLOURS[name]
        axes.fill_between(places, averaged.min(axis=0), averaged.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        axes.plot(places, averaged.mean(axis=0), color=colour, linewidth=2.2)
        axes.plot(places, curves["accuracy"].mean(axis=0), color=colour, linewidth=0.8, alpha=0.75)
        tips.append((float(places[-1]), float(averaged.mean(axis=0)[-1]), name))
    last = max(place for place, _, _ in tips)
    axes.set_xlim(0, last)
    axes.set_ylim(0, 1)
    axes.axhline(target, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.text(
        0.99 * last, target - 0.015, f"target {target:.0%}".replace("%", " %"), ha="right", va="top", fontsize=7.5
    )
    _label(axes, tips, last)
    _bare(axes, title)


def _label(axes: "Axes", tips: list[tuple[float, float, str]], last: float) -> None:
    """Write the names at the ends of the curves: beside them where there is room, else above or below."""
    highest = max(height for _, height, _ in tips)
    heights = _apart([height for _, height, _ in tips], 0.06)
    for (place, end, name), height in zip(tips, heights, strict=True):
        inside = place > 0.8 * last
        shift = (0.035 if end == highest else -0.05) if inside else 0.0
        axes.text(
            place + (-0.01 if inside else 0.01) * last,
            (end if inside else height) + shift,
            LABELS[name],
            ha="right" if inside else "left",
            va="center",
            color=COLOURS[name],
            fontweight="bold",
        )


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
        x = np.arange(values.shape[1]) + 0.22 * (place - (len(groups) - 1) / 2)
        axes.vlines(x, values.min(axis=0), values.max(axis=0), color=COLOURS[name], linewidth=1, alpha=0.6)
        axes.plot(x, values.mean(axis=0), "o", color=COLOURS[name], markersize=4)
        axes.set_xticks(np.arange(values.shape[1]))
        axes.set_xlim(-0.5, values.shape[1] - 0.5)
    axes.set_ylim(0, 1)
    _bare(axes, f"accuracy of each class, {'averaged model' if measured else 'model of the last round'}")


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights that are at least a gap apart, in the same order.

    >>> [round(height, 2) for height in _apart([0.9, 0.5, 0.88], 0.06)]
    [0.94, 0.5, 0.88]
    """
    placed = list(heights)
    order = np.argsort(heights)
    for below, above in itertools.pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    return placed


def _bare(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    bare(axes)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
