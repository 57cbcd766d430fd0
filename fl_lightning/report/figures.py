"""The figures of a report as PNG and SVG, for papers and slides. Matplotlib is imported only here."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fl_lightning.figures.style import INK, MUTED, RULE, save
from fl_lightning.report.comparison import AXES, Comparison
from fl_lightning.report.page import colours, hidden

_COLOURS = ("#d2541a", "#2b87c8", "#0f9a72", "#c25a9b", "#b48a00", "#3f9bd1", "#9a6fd0", "#757d88")
_LINES = {"": "-", "6 3": (0, (6, 3)), "2 2.5": (0, (2, 2.5)), "9 3 2 3": (0, (9, 3, 2, 3)), "1 4": (0, (1, 3))}
_CURVE_HEIGHT = 4.0  # inches
_LEGEND_ROWS = int(_CURVE_HEIGHT * 72 / 10.5)  # a name takes 10.5 points
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "font.size": 9,
    "legend.frameon": False,
    "savefig.dpi": 160,
}


def _looks(comparison: Comparison) -> list[dict[str, Any]]:
    looks = []
    for entry, (colour, dash) in zip(comparison.entries, colours(comparison), strict=True):
        own = entry is comparison.reference
        looks.append(
            {
                "color": _COLOURS[colour],
                "linestyle": _LINES[dash],
                "linewidth": 2.2 if own else 1.2,
                "zorder": 5 if own else 3,
            }
        )
    return looks


def _legend(figure: Figure, axes: Any, count: int) -> None:
    columns = 1 if count <= _LEGEND_ROWS else 2
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", ncols=columns, fontsize=7)


def curve_figure(comparison: Comparison, axis: str, metric: str) -> Figure:
    """Draw a metric along an axis, mean and range over seeds; of many algorithms the best few and the reference."""
    figure = Figure(figsize=(7.2, _CURVE_HEIGHT), layout="constrained")
    axes = figure.subplots()
    axes.margins(x=0)
    skipped = hidden(comparison)
    for place, (entry, look) in enumerate(zip(comparison.entries, _looks(comparison), strict=True)):
        if place in skipped:
            continue
        band = entry.band(axis, metric, 400)
        mean, low, high = (np.maximum(v, 1e-6) if metric == "chi2" else v for v in (band.mean, band.low, band.high))
        axes.plot(band.x, mean, label=entry.name, **look)
        axes.fill_between(band.x, low, high, color=look["color"], alpha=0.13, linewidth=0)
    if metric == comparison.metric and comparison.maximised:
        for target in comparison.targets:
            axes.axhline(target, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
            axes.annotate(
                f"target {target:g}", (0.01, target), xycoords=("axes fraction", "data"), va="bottom", fontsize=7.5
            )
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel(comparison.metric_name if metric == comparison.metric else "chi-square distance of Omega from w")
    _legend(figure, axes, len(comparison.entries) - len(skipped))
    return figure


def final_figure(comparison: Comparison) -> Figure:
    """Draw the final metric of each seed, and the paired differences with their intervals."""
    entries = comparison.entries
    figure = Figure(figsize=(7.2, 1 + 0.22 * len(entries)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (entry, look) in enumerate(zip(entries, _looks(comparison), strict=True)):
        values = list(entry.final(comparison.metric).values())
        left.plot(values, [row] * len(values), "o", color=look["color"], alpha=0.35, markersize=3.5)
        left.plot(comparison.spread(entry).mean, row, "o", color=look["color"], markersize=5)
        pair = comparison.paired(entry)
        if entry is not comparison.reference:
            right.plot([pair.low, pair.high], [row, row], color=look["color"], linewidth=1.6)
            right.plot(pair.mean, row, "o", color=look["color"], markersize=5)
    right.axvline(0, color=MUTED, linewidth=0.8)
    left.set_yticks(range(len(entries)), [entry.name for entry in entries])
    left.invert_yaxis()
    left.set_xlabel(f"final {comparison.metric_name}")
    right.set_xlabel(f"difference to {comparison.reference.name}, 95 % interval")
    return figure


def class_figure(comparison: Comparison) -> Figure | None:
    """Draw the accuracies by class."""
    known = [entry for entry in comparison.entries if len(entry.class_accuracy)]
    if not known:
        return None
    values = np.stack([entry.class_accuracy for entry in known])
    figure = Figure(figsize=(1.8 + 0.36 * values.shape[1], 1 + 0.24 * len(known)), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    picture = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(known)), [entry.name for entry in known])
    axes.set_xlabel("class")
    figure.colorbar(picture, ax=axes, label="accuracy")
    return figure


def client_figure(comparison: Comparison, column: str) -> Figure | None:
    """Draw a column of the clients for each algorithm, against what it should be: draws by plan, Omega by w."""
    wanted = {"draws": "expected_draws", "effective_weight": "weight"}[column]
    known = [
        (entry, look)
        for entry, look in zip(comparison.entries, _looks(comparison), strict=True)
        if len(entry.client_mean(column)) and len(entry.client_mean(wanted))
    ]
    if not known:
        return None
    width = min(5, len(known))
    height = -(-len(known) // width)
    figure = Figure(figsize=(7.2, 0.6 + 1.1 * height), layout="constrained")
    grid = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (entry, look) in zip(grid, known, strict=False):
        axes.plot(entry.client_mean(wanted), color=MUTED, drawstyle="steps-mid", linewidth=1)
        axes.plot(entry.client_mean(column), "o", color=look["color"], markersize=2)
        axes.set_title(entry.name, fontsize=7)
        axes.tick_params(labelsize=6)
    for axes in grid[len(known) :]:
        axes.set_visible(False)
    words = {"draws": "draws (line: planned)", "effective_weight": "Omega (line: w)"}
    figure.supxlabel("client", fontsize=8)
    figure.supylabel(words[column], fontsize=8)
    return figure


def condition_figure(comparison: Comparison) -> Figure | None:
    """Draw T and q of every client."""
    run = comparison.reference.runs[0]
    if not {"num_steps", "failure_rate"} <= run.clients.keys():
        return None
    figure = Figure(figsize=(4, 3.2), layout="constrained")
    axes = figure.subplots()
    for one in comparison.reference.runs:
        axes.plot(
            one.clients["num_steps"],
            one.clients["failure_rate"],
            "o",
            alpha=0.6,
            markersize=4,
            label=f"seed {one.seed}",
        )
    axes.set_xlabel("local steps T, mean over rounds")
    axes.set_ylabel("failure probability q, mean over rounds")
    axes.legend(fontsize=7)
    return figure


def write_figures(comparison: Comparison, out: Path) -> list[Path]:
    """Draw everything and return the files."""
    out.mkdir(parents=True, exist_ok=True)
    metric = comparison.metric
    makers: dict[str, Callable[[], Figure | None]] = {
        f"{metric}_by_{axis}": partial(curve_figure, comparison, axis, metric) for axis in AXES
    }
    makers |= {
        "final": lambda: final_figure(comparison),
        "classes": lambda: class_figure(comparison),
        "chi_square": lambda: curve_figure(comparison, "round", "chi2"),
        "participation": lambda: client_figure(comparison, "draws"),
        "objective": lambda: client_figure(comparison, "effective_weight"),
        "heterogeneity": lambda: condition_figure(comparison),
    }
    files = []
    with mpl.rc_context(_STYLE):
        for name, make in makers.items():
            figure = make()
            if figure is None:
                continue
            for ending in ("png", "svg"):
                files.append(out / f"{name}.{ending}")
                save(figure, files[-1])
    return files
