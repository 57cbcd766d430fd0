"""A picture of a partition: which client holds how much of which class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.figures.style import BLUE, INK, MUTED, RULE, blank, whole_ticks
from fl_lightning.types import IntVector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BUBBLE_CLIENTS = 50


def partition_figure(counts: IntVector, class_names: Sequence[str]) -> "Figure":
    """Draw clients (columns) against classes (rows); bubbles for few clients, a heat map for many.

    Above it stand the clients' sizes, so that a skew in quantity shows as well as a skew in labels.

    Args:
        counts: Examples of each client and class, (M, C); see :func:`fl_lightning.data.label_counts`.
        class_names: C names.
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.shape[1] != len(class_names) or counts.size == 0:
        raise ValueError(f"counts must have shape (clients, {len(class_names)} classes), got {counts.shape}")
    num_clients, num_classes = counts.shape
    figure = blank(_width(num_clients), 2.2 + 0.34 * num_classes, dpi=150)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1, max(2.0, 0.34 * num_classes)])
    _draw_sizes(top, counts.sum(axis=1))
    if num_clients <= _MAX_BUBBLE_CLIENTS:
        _draw_bubbles(main, counts)
    else:
        _draw_heat_map(figure, main, counts)
    _label_axes(main, num_clients, class_names)
    return figure


def _width(num_clients: int) -> float:
    """Return the width of the figure in inches."""
    return float(np.clip(2.5 + 0.32 * num_clients, 6, 13))


def _draw_sizes(axes: "Axes", sizes: IntVector) -> None:
    clients = np.arange(len(sizes))
    if len(sizes) <= _MAX_BUBBLE_CLIENTS:
        axes.bar(clients, sizes, width=0.6, color=BLUE)
    else:
        axes.fill_between(clients, sizes, step="mid", color=BLUE, linewidth=0)
    axes.set_ylim(0, sizes.max() * 1.08)
    axes.set_ylabel("examples", color=MUTED, fontsize=9)
    each = f"{sizes.max():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    title = f"{len(sizes):,} client{'s'[: len(sizes) > 1]}, {sizes.sum():,} examples, {each} each"
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.locator_params(axis="y", nbins=3)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.tick_params(axis="y", colors=MUTED, labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)


def _draw_bubbles(axes: "Axes", counts: IntVector) -> None:
    client, label = np.nonzero(counts)
    shown = counts[client, label]
    pitch = min(24.0, 72 * (_width(len(counts)) - 2) / len(counts))  # points between neighbouring columns or rows
    areas = np.maximum((0.9 * pitch) ** 2 * shown / shown.max(), 2.0)  # a single example still shows
    axes.scatter(client, label, s=areas, color=BLUE, linewidths=0, zorder=2)
    axes.grid(color=RULE, linewidth=0.6, zorder=0)
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_title(f"largest bubble: {shown.max():,} examples", loc="right", color=MUTED, fontsize=8)


def _draw_heat_map(figure: "Figure", axes: "Axes", counts: IntVector) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    picture = axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        aspect="auto",
        cmap=ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256))),  # without the palest: white means none
        norm=PowerNorm(0.5, vmin=0, vmax=counts.max()),  # small shares must stay visible beside a client's main class
        interpolation="nearest",
    )
    axes.hlines(np.arange(1, counts.shape[1]) - 0.5, -0.5, len(counts) - 0.5, color="white", linewidth=2)
    bar = figure.colorbar(picture, ax=axes, pad=0.01, aspect=30)
    bar.set_label("examples", color=MUTED, fontsize=8)
    bar.ax.tick_params(colors=MUTED, labelsize=8)
    bar.outline.set_visible(False)


def _label_axes(axes: "Axes", num_clients: int, class_names: Sequence[str]) -> None:
    axes.set_yticks(range(len(class_names)), list(class_names))
    axes.set_ylim(len(class_names) - 0.5, -0.5)
    whole_ticks(axes, min(num_clients, 20))
    axes.set_xlabel("client", color=MUTED, fontsize=9)
    axes.set_ylabel("class", color=MUTED, fontsize=9)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.spines[:].set_visible(False)
