"""The picture of a diagnosis: the objective of each algorithm beside the one that was asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.diagnosis import Diagnosis
from fl_lightning.figures.style import BLUE, INK, MUTED, ORANGE, RULE, bare
from fl_lightning.types import IntVector, Vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BARS, _MAX_PANELS = 60, 9


def diagnosis_figure(
    diagnoses: Sequence[Diagnosis], num_steps: Vector, failure_rates: Vector, recommended: str = ""
) -> "Figure":
    """Draw Omega (bars) against w (line) for each distinct objective; above them who the clients are.

    Algorithms with the same objective share a panel. Blue bars are shares above what was asked for, orange ones below.
    Many clients are ordered by their contribution under FedAvg and drawn as an area.

    Args:
        diagnoses: What is known of each algorithm; the first decides the order of many clients.
        num_steps: T of each client, on average, (M,).
        failure_rates: q of each client, on average, (M,).
        recommended: Name to mark.
    """
    from matplotlib.figure import Figure  # imported here: costs half a second
    from matplotlib.ticker import MaxNLocator

    groups = same_objective(diagnoses)[:_MAX_PANELS]
    num_clients = len(diagnoses[0].weights)
    many = num_clients > _MAX_BARS
    order = np.argsort(diagnoses[0].ratios, kind="stable") if many else np.arange(num_clients)
    width = float(np.clip(3.0 + 0.3 * num_clients, 7.5, 11))
    figure = Figure(figsize=(width, 1.9 + 1.22 * len(groups)), dpi=130, layout="constrained")
    panels = figure.subplots(len(groups) + 1, 1, sharex=True, height_ratios=[0.9, *[1.0] * len(groups)])
    _draw_clients(panels[0], num_steps[order], failure_rates[order], many)
    top = 1.12 * max(max(group[0].effective_weights.max(), group[0].weights.max()) for group in groups)
    for axes, group in zip(panels[1:], groups, strict=True):
        _draw_objective(axes, group, order, many, top, recommended)
    panels[1].annotate(
        "line: the share that was asked for   bars: the share that is optimised",
        (0.995, 0.95),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=8,
        color=MUTED,
    )
    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    panels[-1].set_xlabel("clients, from the least to the most heard" if many else "client", color=MUTED, fontsize=9)
    return figure


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


def _draw_clients(axes: "Axes", num_steps: Vector, failure_rates: Vector, many: bool) -> None:
    clients = np.arange(len(num_steps))
    if many:
        axes.fill_between(clients, num_steps, step="mid", color=RULE, linewidth=0)
    else:
        axes.bar(clients, num_steps, width=0.72, color=RULE)
    axes.set_ylim(0, float(num_steps.max()) * 1.15)
    axes.set_ylabel("local steps", color=MUTED, fontsize=8)
    bare(axes)
    right = axes.twinx()
    right.plot(clients, failure_rates, "-" if many else "o", color=INK, markersize=3.2, linewidth=1)
    right.set_ylim(0, max(0.05, float(failure_rates.max()) * 1.25))
    right.set_ylabel("• failure rate", color=INK, fontsize=8)
    bare(right)
    axes.set_title(
        "the clients: how much they compute, and how often their upload is lost", loc="left", fontsize=9.5, color=INK
    )


def _draw_objective(
    axes: "Axes", group: list[Diagnosis], order: IntVector, many: bool, top: float, recommended: str
) -> None:
    weights, omega = group[0].weights[order], group[0].effective_weights[order]
    clients = np.arange(len(weights))
    if many:
        axes.fill_between(
            clients, weights, omega, where=omega >= weights, step="mid", color=BLUE, alpha=0.75, linewidth=0
        )
        axes.fill_between(
            clients, weights, omega, where=omega < weights, step="mid", color=ORANGE, alpha=0.75, linewidth=0
        )
    else:
        fair = np.abs(omega - weights) <= 0.02 * weights
        colours = np.where(fair, "#8fa3b5", np.where(omega > weights, BLUE, ORANGE))
        axes.bar(clients, omega, width=0.72, color=colours.tolist())
    axes.step(np.r_[-0.5, clients + 0.5], np.r_[weights[:1], weights], where="pre", color=INK, linewidth=1.3)
    axes.set_ylim(0, top)
    axes.set_xlim(-0.8, len(weights) - 0.2)
    bare(axes)
    axes.locator_params(axis="y", nbins=3)
    names = ", ".join(f"{each.name} ★" if each.name == recommended else each.name for each in group)
    axes.set_title(_shortened(names, 92), loc="left", fontsize=9.5, color=INK, fontweight="bold")
    verdict = "as asked for" if group[0].consistent else f"{100 * group[0].distance / 2:.0f} % of the weight misplaced"
    axes.set_title(verdict, loc="right", fontsize=9, color="#2f7d4f" if group[0].consistent else "#a84a00")


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: text.rindex(", ", 0, width)] + ", ..."
