"""Pictures of clients: what they hold, how they differ, and their share of the objective of each algorithm."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.diagnosis.objective import Diagnosis
from fl_lightning.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, RULE, bare, blank, whole_ticks
from fl_lightning.types import IntVector, Vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BARS, _MAX_PANELS = 60, 9
_MAX_BUBBLE_CLIENTS = 50
_KEY = "line: the share that was asked for   bars: the share that is optimised"


def diagnosis_figure(
    diagnoses: Sequence[Diagnosis], num_steps: Vector, failure_rates: Vector, recommended: str = ""
) -> "Figure":
    """Draw Omega (bars) against w (line) for each distinct objective; above them who the clients are.

    Algorithms with the same objective share a panel. Bars are green where as asked for, blue above it, orange below.
    Many clients are grouped by how much of what was asked for they get from the first algorithm.

    Args:
        diagnoses: What is known of each algorithm.
        num_steps: T of each client, on average, (M,).
        failure_rates: q of each client, on average, (M,).
        recommended: Name to mark.
    """
    groups = _same_objective(diagnoses)[:_MAX_PANELS]
    bars = _bars(diagnoses[0].ratios)
    figure = blank(float(np.clip(3.0 + 0.3 * len(bars), 7.5, 11)), 1.9 + 1.22 * len(groups))
    panels = figure.subplots(len(groups) + 1, 1, sharex=True, height_ratios=[0.9, *[1.0] * len(groups)])
    _draw_clients(panels[0], *(np.array([column[bar].mean() for bar in bars]) for column in (num_steps, failure_rates)))
    shares = [_shares(bars, group[0].weights, group[0].effective_weights) for group in groups]
    top = 1.12 * max(float(np.max(pair)) for pair in shares)
    for axes, group, (weights, omega) in zip(panels[1:], groups, shares, strict=True):
        _draw_objective(axes, weights, omega, top)
        _name(axes, group, recommended)
    panels[1].annotate(_KEY, (0.995, 0.95), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=MUTED)
    whole_ticks(panels[-1], 20)
    groups_of = f"{len(bars)} groups of {len(bars[0])} clients, from the most neglected to the most favoured"
    panels[-1].set_xlabel("client" if len(bars[0]) == 1 else groups_of, color=MUTED, fontsize=9)
    return figure


def objective_figure(weights: Vector, effective_weights: Vector) -> "Figure":
    """Draw Omega (bars) against w (line) of one run, both (M,); many clients are grouped by how much of w they get."""
    bars = _bars(effective_weights / np.maximum(weights, 1e-300))
    asked, optimised = _shares(bars, weights, effective_weights)
    figure = blank(float(np.clip(3.0 + 0.3 * len(bars), 6, 11)), 2.4)
    axes = figure.subplots()
    _draw_objective(axes, asked, optimised, 1.12 * float(max(asked.max(), optimised.max())))
    axes.set_title(_KEY, loc="left", fontsize=9)
    many = len(weights) > _MAX_BARS
    axes.set_xlabel(f"{len(bars)} groups of clients" if many else "client", color=MUTED, fontsize=9)
    return figure


def _bars(ratios: Vector) -> list[IntVector]:
    """Return the clients behind each bar: one, or where there are many an equal number, the most neglected first."""
    if len(ratios) <= _MAX_BARS:
        return list(np.arange(len(ratios))[:, None])
    return np.array_split(np.argsort(ratios, kind="stable"), _MAX_BARS // 2)


def _shares(bars: list[IntVector], *columns: Vector) -> list[Vector]:
    return [np.array([column[bar].sum() for bar in bars]) for column in columns]


def _same_objective(diagnoses: Sequence[Diagnosis]) -> list[list[Diagnosis]]:
    """Group the diagnoses whose objectives agree, the most faithful group first."""
    groups: list[list[Diagnosis]] = []
    for each in sorted(diagnoses, key=lambda one: round(one.distance, 3)):  # rounding errors must not decide
        for group in groups:
            if np.abs(group[0].effective_weights - each.effective_weights).sum() < 0.02:
                group.append(each)
                break
        else:
            groups.append([each])
    return groups


def _draw_clients(axes: "Axes", num_steps: Vector, failure_rates: Vector) -> None:
    clients = np.arange(len(num_steps))
    axes.bar(clients, num_steps, width=0.72, color=RULE)
    axes.set_ylim(0, float(num_steps.max()) * 1.15)
    axes.set_ylabel("local steps", color=MUTED, fontsize=8)
    bare(axes)
    right = axes.twinx()
    right.plot(clients, failure_rates, "o", color=INK, markersize=3.2)
    right.set_ylim(0, max(0.05, float(failure_rates.max()) * 1.25))
    right.set_ylabel("• failure rate", color=INK, fontsize=8)
    bare(right)
    title = "the clients: how much they compute, and how often their upload is lost"
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)


def _draw_objective(axes: "Axes", weights: Vector, omega: Vector, top: float) -> None:
    clients = np.arange(len(weights))
    fair = np.abs(omega - weights) <= 0.02 * weights
    colours = np.where(fair, GREEN, np.where(omega > weights, BLUE, ORANGE))
    axes.bar(clients, omega, width=0.72, color=colours.tolist())
    axes.step(np.r_[-0.5, clients + 0.5], np.r_[weights[:1], weights], where="pre", color=INK, linewidth=1.6)
    axes.set_ylim(0, top)
    axes.set_xlim(-0.8, len(weights) - 0.2)
    axes.locator_params(axis="y", nbins=3)
    bare(axes)


def named(names: Sequence[str], recommended: str, width: int = 62) -> str:
    """Return the names of algorithms in one line, the recommended one first; those for which there is no room counted.

    >>> named(["fedavg", "fedprox", "limitedfedacs"], "limitedfedacs", width=25)
    'limitedfedacs ★, fedavg and 1 more'
    """
    ordered = sorted(names, key=lambda name: name != recommended)
    shown = [f"{name} ★" if name == recommended else name for name in ordered]
    fits = max(1, sum(len(", ".join(shown[:number])) <= width for number in range(1, len(shown) + 1)))
    more = f" and {len(shown) - fits} more" if fits < len(shown) else ""
    return ", ".join(shown[:fits]) + more


def _name(axes: "Axes", group: list[Diagnosis], recommended: str) -> None:
    axes.set_title(
        named([each.name for each in group], recommended), loc="left", fontsize=9.5, color=INK, fontweight="bold"
    )
    fair = group[0].consistent
    verdict = "as asked for" if fair else f"{100 * group[0].distance / 2:.0f} % of the weight misplaced"
    axes.set_title(verdict, loc="right", fontsize=9, color=GREEN if fair else ORANGE)


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
    width = float(np.clip(2.5 + 0.32 * num_clients, 6, 13))  # inches
    figure = blank(width, 2.2 + 0.34 * num_classes, dpi=150)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1, max(2.0, 0.34 * num_classes)])
    _draw_sizes(top, counts.sum(axis=1))
    if num_clients <= _MAX_BUBBLE_CLIENTS:
        _draw_bubbles(main, counts, width)
    else:
        _draw_heat_map(figure, main, counts)
    main.set_yticks(range(num_classes), list(class_names))
    main.set_ylim(num_classes - 0.5, -0.5)
    whole_ticks(main, min(num_clients, 20))
    main.set_xlabel("client", color=MUTED, fontsize=9)
    main.set_ylabel("class", color=MUTED, fontsize=9)
    main.tick_params(colors=MUTED, labelsize=8, length=0)
    main.spines[:].set_visible(False)
    return figure


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


def _draw_bubbles(axes: "Axes", counts: IntVector, width: float) -> None:
    client, label = np.nonzero(counts)
    shown = counts[client, label]
    pitch = min(24.0, 72 * (width - 2) / len(counts))  # points between neighbouring columns or rows
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
