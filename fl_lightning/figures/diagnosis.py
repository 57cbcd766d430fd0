"""The picture of a diagnosis: the objective of each algorithm beside the one that was asked for."""

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


def diagnosis_figure(
    diagnoses: Sequence[Diagnosis], num_steps: Vector, failure_rates: Vector, recommended: str = ""
) -> "Figure":
    """Draw Omega (bars) against w (line) for each distinct objective; above them who the clients are.

    Algorithms with the same objective share a panel. Bars are green where as asked for, blue above it, orange below.
    Many clients are grouped by how much of what was asked for they get.

    Args:
        diagnoses: What is known of each algorithm; the first decides the order of many clients.
        num_steps: T of each client, on average, (M,).
        failure_rates: q of each client, on average, (M,).
        recommended: Name to mark.
    """
    groups = same_objective(diagnoses)[:_MAX_PANELS]
    bars = _bars(diagnoses[0].ratios)
    figure = blank(float(np.clip(3.0 + 0.3 * len(bars), 7.5, 11)), 1.9 + 1.22 * len(groups))
    panels = figure.subplots(len(groups) + 1, 1, sharex=True, height_ratios=[0.9, *[1.0] * len(groups)])
    _draw_clients(panels[0], *(np.array([column[bar].mean() for bar in bars]) for column in (num_steps, failure_rates)))
    shares = [
        [np.array([column[bar].sum() for bar in bars]) for column in (group[0].weights, group[0].effective_weights)]
        for group in groups
    ]
    top = 1.12 * max(float(np.max(pair)) for pair in shares)
    for axes, group, (weights, omega) in zip(panels[1:], groups, shares, strict=True):
        _draw_objective(axes, weights, omega, top)
        _name(axes, group, recommended)
    panels[1].annotate(
        "line: the share that was asked for   bars: the share that is optimised",
        (0.995, 0.95),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=8,
        color=MUTED,
    )
    whole_ticks(panels[-1], 20)
    groups_of = f"{len(bars)} groups of {len(bars[0])} clients, from the most neglected to the most favoured"
    panels[-1].set_xlabel("client" if len(bars[0]) == 1 else groups_of, color=MUTED, fontsize=9)
    return figure


def objective_figure(weights: Vector, effective_weights: Vector) -> "Figure":
    """Draw Omega (bars) against w (line) of one run.

    Many clients are grouped by how much of what was asked for they get.

    Args:
        weights: w, (M,).
        effective_weights: Omega, (M,).
    """
    bars = _bars(effective_weights / np.maximum(weights, 1e-300))
    many = len(weights) > _MAX_BARS
    asked, optimised = (np.array([column[bar].sum() for bar in bars]) for column in (weights, effective_weights))
    figure = blank(float(np.clip(3.0 + 0.3 * len(bars), 6, 11)), 2.4)
    axes = figure.subplots()
    _draw_objective(axes, asked, optimised, 1.12 * float(max(asked.max(), optimised.max())))
    axes.set_title("line: the share that was asked for   bars: the share that is optimised", loc="left", fontsize=9)
    axes.set_xlabel(f"{len(bars)} groups of clients" if many else "client", color=MUTED, fontsize=9)
    return figure


def _bars(ratios: Vector) -> list[IntVector]:
    """Return the clients behind each bar: one, or where there are many an equal number, the most neglected first."""
    if len(ratios) <= _MAX_BARS:
        return list(np.arange(len(ratios))[:, None])
    return np.array_split(np.argsort(ratios, kind="stable"), _MAX_BARS // 2)


def same_objective(diagnoses: Sequence[Diagnosis]) -> list[list[Diagnosis]]:
    """Group the diagnoses whose objectives agree, the most faithful group first."""
    groups: list[list[Diagnosis]] = []
    for each in sorted(diagnoses, key=lambda one: one.distance):
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


def _name(axes: "Axes", group: list[Diagnosis], recommended: str) -> None:
    names = ", ".join(f"{each.name} ★" if each.name == recommended else each.name for each in group)
    axes.set_title(_shortened(names, 92), loc="left", fontsize=9.5, color=INK, fontweight="bold")
    fair = group[0].consistent
    verdict = "as asked for" if fair else f"{100 * group[0].distance / 2:.0f} % of the weight misplaced"
    axes.set_title(verdict, loc="right", fontsize=9, color=GREEN if fair else ORANGE)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: text.rindex(", ", 0, width)] + ", ..."
