"""The picture of the toy: distance to the true optimum against rounds, of the model and of its running average."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.figures.convergence import Curves, Plateau
from fl_lightning.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, YELLOW, apart, bare, blank
from fl_lightning.theory.checks import Vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (ORANGE, YELLOW, PURPLE, GREEN)
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_POINTS = 240  # shown of each curve


def convergence_figure(title: str, curves: Sequence[Curves], plateaus: Sequence[Plateau]) -> "Figure":
    """Draw mean and spread (10th to 90th percentile) over the seeds; dashed where the theory says that a curve ends.

    The last curve is the remedy, drawn strongest.
    """
    figure = blank(11.5, 4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, color=INK, fontweight="bold")
    limits = _limits(curves, plateaus)
    ends = [[plateau.distance.mean() for plateau in plateaus], [plateau.bias.mean() for plateau in plateaus]]
    _draw(left, "the model of each round", curves, "distance", ends[0], limits)
    _draw(right, "the average of all models so far", curves, "average", ends[1], limits)
    left.annotate(
        "line: mean over the seeds   band: 10th to 90th percentile   dashes: where the theory says it ends",
        (0.0, 0.012),
        xycoords="axes fraction",
        fontsize=7.5,
        color=MUTED,
    )
    left.set_ylabel("distance to the true optimum", color=MUTED, fontsize=9)
    return figure


def shown_rounds(rounds: int) -> Vector:
    """Return the rounds at which curves are shown, evenly on a logarithmic axis and from 1 to the last.

    >>> shown_rounds(5).tolist()
    [1, 2, 3, 4, 5]
    """
    return np.unique(np.rint(np.geomspace(1, rounds, _POINTS)).astype(np.int64))


def _draw(
    axes: "Axes", title: str, curves: Sequence[Curves], what: str, ends: Sequence[float], limits: tuple[float, float]
) -> None:
    rounds = shown_rounds(curves[0].distance.shape[1])
    tails = []
    for place, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        remedy = place == len(curves) - 1
        colour = BLUE if remedy else _COLOURS[place % len(_COLOURS)]
        values = getattr(curve, what)[:, rounds - 1]
        mean = values.mean(axis=0)
        low, high = np.percentile(values, [10, 90], axis=0)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18 if remedy else 0.06, linewidth=0)
        axes.plot(rounds, mean, color=colour, linewidth=2.4 if remedy else 1.5, zorder=3 if remedy else 2)
        axes.hlines(end, rounds[-1] / 8, rounds[-1], color=INK, linestyle=(0, (2, 2)), linewidth=1.0, zorder=5)
        tails.append((float(_end(curve, what).mean()), curve.label, colour, remedy))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, rounds[-1])
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("round", color=MUTED, fontsize=9)
    axes.grid(axis="y", color=RULE, linewidth=0.5, alpha=0.7)
    bare(axes)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_ylim(*limits)
    _label(axes, tails, float(np.log10(limits[1] / limits[0])))


def _end(curve: Curves, what: str) -> Vector:
    """Return the last tenth of a path that fluctuates, or the last value of one that does not, (seeds, ...)."""
    values: Vector = getattr(curve, what)
    return values[:, -max(1, values.shape[1] // 10) :] if what == "distance" else values[:, -1]


def _limits(curves: Sequence[Curves], plateaus: Sequence[Plateau]) -> tuple[float, float]:
    """Return the range of distances that both halves share; a predicted end far below all curves is left out."""
    rounds = shown_rounds(curves[0].distance.shape[1])
    shown = [values[:, rounds - 1] for curve in curves for values in (curve.distance, curve.average)]
    low = min(float(np.percentile(values, 10, axis=0).min()) for values in shown)
    ends = [float(plateau.bias.mean()) for plateau in plateaus if plateau.bias.mean() > low / 5]
    return 0.75 * min([low, *ends]), 1.15 * max(float(values.max()) for values in shown)


def _label(axes: "Axes", tails: list[tuple[float, str, str, bool]], decades: float) -> None:
    """Write each curve's name beside its end, pushed apart where names would overlap."""
    places = apart([math.log10(tail[0]) for tail in tails], 0.052 * decades)
    for place, (value, label, colour, remedy) in zip(places, tails, strict=True):
        axes.annotate(
            f"{label}  {value:.2g}",
            (1.012, 10**place),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontsize=8.5,
            va="center",
            fontweight="bold" if remedy else "normal",
            annotation_clip=False,
        )


def write_csv(path: Path, curves: Sequence[Curves], plateaus: Sequence[Plateau]) -> None:
    """Write what the figure shows: for each curve and shown round mean, standard deviation and percentiles."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        kinds = [f"{what}_{value}" for what in ("distance", "average") for value in ("mean", "sd", "p10", "p90")]
        writer.writerow(["curve", "round", *kinds, "predicted_distance", "predicted_average"])
        for curve, plateau in zip(curves, plateaus, strict=True):
            ends = [f"{plateau.distance.mean():.6g}", f"{plateau.bias.mean():.6g}"]
            for index in shown_rounds(curve.distance.shape[1]):
                row = [*_summary(curve.distance[:, index - 1]), *_summary(curve.average[:, index - 1])]
                writer.writerow([curve.label, int(index), *row, *ends])


def _summary(values: Vector) -> list[str]:
    low, high = np.percentile(values, [10, 90])
    return [f"{value:.6g}" for value in (values.mean(), values.std(), low, high)]
