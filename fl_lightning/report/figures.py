"""The figures of a report as PNG and SVG, for papers and slides."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.figures.style import BLUE, GREEN, MUTED, ORANGE, PURPLE, SKY, YELLOW, blank, require, save
from fl_lightning.report.comparison import AXES, Comparison, Entry, offered
from fl_lightning.report.page import colours, hidden

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, "#9a6fd0", "#757d88")
_LINES = {"": "-", "6 3": (0, (6, 3)), "2 2.5": (0, (2, 2.5)), "9 3 2 3": (0, (9, 3, 2, 3)), "1 4": (0, (1, 3))}
_CURVE_HEIGHT = 4.0  # inches
_LEGEND_ROWS = int(_CURVE_HEIGHT * 72 / 10.5)  # a name takes 10.5 points
_STYLE = Path(__file__).with_name("figures.mplstyle")


def _coloured(comparison: Comparison) -> list[tuple[Entry, str]]:
    return [(e, _COLOURS[colour]) for e, (colour, _) in zip(comparison.entries, colours(comparison), strict=True)]


def curve_figure(comparison: Comparison, axis: str, metric: str) -> "Figure":
    """Draw a metric along an axis, mean and range over seeds; of many algorithms the best few and the reference."""
    figure = blank(7.2, _CURVE_HEIGHT, dpi=100)
    axes = figure.subplots()
    axes.margins(x=0)
    skipped = hidden(comparison)
    for place, (entry, (colour, dash)) in enumerate(zip(comparison.entries, colours(comparison), strict=True)):
        if place in skipped:
            continue
        band = entry.band(axis, metric, 400)
        mean, low, high = (np.maximum(v, 1e-6) if metric == "chi2" else v for v in (band.mean, band.low, band.high))
        (curve,) = axes.plot(band.x, mean, label=entry.name, color=_COLOURS[colour], linestyle=_LINES[dash])
        is_reference = entry is comparison.reference
        curve.set(linewidth=2.2 if is_reference else 1.2, zorder=5 if is_reference else 3)
        axes.fill_between(band.x, low, high, color=_COLOURS[colour], alpha=0.13, linewidth=0)
    is_own = metric == comparison.metric
    for target in comparison.targets if is_own else ():
        axes.axhline(target, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        where = ("axes fraction", "data")
        axes.annotate(f"target {target:g}", (0.01, target), xycoords=where, va="bottom", fontsize=7.5)
    if not is_own or not comparison.maximised:
        axes.set_yscale("log")
    elif not any((run.metrics[metric] < 0).any() for run in comparison.runs):
        axes.set_ylim(bottom=0)
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel(comparison.metric_name if is_own else "chi-square distance of Omega from w")
    handles = axes.get_legend_handles_labels()
    columns = 1 if len(handles[0]) <= _LEGEND_ROWS else 2
    figure.legend(*handles, loc="outside right upper", ncols=columns, fontsize=7)
    return figure


def final_figure(comparison: Comparison) -> "Figure":
    """Draw the final metric of each seed, and the paired differences with their intervals."""
    entries = comparison.entries
    figure = blank(7.2, 1 + 0.22 * len(entries), dpi=100)
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (entry, colour) in enumerate(_coloured(comparison)):
        values = list(entry.final(comparison.metric).values())
        left.plot(values, [row] * len(values), "o", color=colour, alpha=0.35, markersize=3.5)
        left.plot(comparison.spread(entry).mean, row, "o", color=colour, markersize=5)
        pair = comparison.paired(entry)
        if entry is not comparison.reference:
            right.plot([pair.low, pair.high], [row, row], color=colour, linewidth=1.6)
            right.plot(pair.mean, row, "o", color=colour, markersize=5)
    right.axvline(0, color=MUTED, linewidth=0.8)
    left.set_yticks(range(len(entries)), [entry.name for entry in entries])
    left.invert_yaxis()
    left.set_xlabel(f"final {comparison.metric_name}")
    right.set_xlabel(f"difference to {comparison.reference.name}, 95 % interval")
    return figure


def class_figure(comparison: Comparison) -> "Figure | None":
    """Draw the accuracies by class."""
    known = [entry for entry in comparison.entries if len(entry.class_accuracy)]
    if not known:
        return None
    values = np.stack([entry.class_accuracy for entry in known])
    figure = blank(1.8 + 0.36 * values.shape[1], 1 + 0.24 * len(known), dpi=100)
    axes = figure.subplots()
    axes.grid(False)
    picture = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(known)), [entry.name for entry in known])
    axes.set_xlabel("class")
    figure.colorbar(picture, ax=axes, label="accuracy")
    return figure


def client_figure(comparison: Comparison, column: str, wanted: str, words: str) -> "Figure | None":
    """Draw a column of the clients for each algorithm, as dots, against what it should be, as a line."""
    pairs = [(entry, colour, entry.client_mean(column)) for entry, colour in _coloured(comparison)]
    known = [pair for pair in pairs if len(pair[2]) and len(pair[0].client_mean(wanted))]
    if not known:
        return None
    width = min(5, len(known))
    height = -(-len(known) // width)
    figure = blank(7.2, 0.6 + 1.1 * height, dpi=100)
    grid = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (entry, colour, values) in zip(grid, known, strict=False):
        axes.plot(entry.client_mean(wanted), color=MUTED, drawstyle="steps-mid", linewidth=1)
        axes.plot(values, "o", color=colour, markersize=2)
        axes.set_title(entry.name, fontsize=7)
        axes.tick_params(labelsize=6)
    for axes in grid[len(known) :]:
        axes.set_visible(False)
    figure.supxlabel("client", fontsize=8)
    figure.supylabel(words, fontsize=8)
    return figure


def condition_figure(comparison: Comparison) -> "Figure | None":
    """Draw T and q of every client."""
    met = {run.seed: offered(run) for run in comparison.reference.runs}
    if not all({"num_steps", "failure_rate"} <= table.keys() for table in met.values()):
        return None
    figure = blank(4, 3.2, dpi=100)
    axes = figure.subplots()
    for seed, table in met.items():
        axes.plot(table["num_steps"], table["failure_rate"], "o", alpha=0.6, markersize=4, label=f"seed {seed}")
    axes.set_xlabel("local steps T, mean over rounds")
    axes.set_ylabel("failure probability q, mean over rounds")
    axes.legend(fontsize=7)
    return figure


def write_figures(comparison: Comparison, out: Path) -> list[Path]:
    """Draw everything and return the files."""
    require("matplotlib")
    from matplotlib import style

    metric = comparison.metric
    # Private runs say nothing of costs.
    known = [axis for axis in AXES if any(np.isfinite(run.metrics[axis]).any() for run in comparison.runs)]
    made: dict[str, Figure | None]
    files = []
    with style.context(str(_STYLE)):
        made = {f"{metric}_by_{axis}": curve_figure(comparison, axis, metric) for axis in known}
        made |= {
            "final": final_figure(comparison),
            "classes": class_figure(comparison),
            "chi_square": curve_figure(comparison, "round", "chi2"),
            "participation": client_figure(comparison, "draws", "expected_draws", "draws (line: planned)"),
            "objective": client_figure(comparison, "effective_weight", "weight", "Omega (line: w)"),
            "heterogeneity": condition_figure(comparison),
        }
        for name, figure in made.items():
            if figure is not None:
                pictures = [out / f"{name}.png", out / f"{name}.svg"]
                save(figure, *pictures)
                files += pictures
    return files
