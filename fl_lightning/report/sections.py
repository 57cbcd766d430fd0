"""The sections of the page, each from a comparison to HTML; nothing for one that has nothing to show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fl_lightning.report import tables
from fl_lightning.report.charts import Chart, Series, Stroke, Word, line_chart
from fl_lightning.report.client_charts import (
    condition_charts,
    fairness_cards,
    interval_strokes,
    omega_cards,
    participation_cards,
    seed_strokes,
)
from fl_lightning.report.comparison import AXES, Comparison
from fl_lightning.report.rendering import render
from fl_lightning.report.scales import Scale, tick_label

Charts = dict[str, Any]  # what hovering shows, by the chart's name
MANY = 12
FORGOTTEN = 0.1


def series(comparison: Comparison, axis: str, metric: str) -> list[Series]:
    """Return one curve for each algorithm."""
    num_points = 200 if len(comparison.entries) <= MANY else 100
    return [
        Series(
            index=index,
            name=entry.name,
            band=entry.band(axis, metric, num_points),
            is_reference=entry is comparison.reference,
        )
        for index, entry in enumerate(comparison.entries)
    ]


def curves(comparison: Comparison, charts: Charts) -> Markup:
    """Return the metric against rounds, local steps and computation time."""
    metric, name = comparison.metric, comparison.metric_name
    drawings = {}
    for axis, words in AXES.items():
        chart = Chart(
            identity=f"curve-{axis}",
            x_label=words,
            y_label=name,
            height=430 if axis == "round" else 250,
            marks=comparison.targets,
            logarithmic=not comparison.maximised,
            direct_labels=axis == "round",
        )
        drawings[axis], charts[chart.identity] = line_chart(chart, series(comparison, axis, metric))
    return render("curves", {"drawings": drawings, "note": _curves_note(comparison)})


def _curves_note(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    band = "its band from the lowest to the highest seed" if seeds > 1 else "one seed, so no band"
    longest = max(len(run.metrics["round"]) for run in comparison.runs)
    thinned = longest > (200 if len(comparison.entries) <= MANY else 100)
    return (
        f"Line: mean over {seeds} seed{'s' * (seeds > 1)}; {band}. Smoothing is off unless you switch it on"
        + ("; not every round is drawn" if thinned else "")
        + ". Local steps and time count every client that was asked, also where the upload was lost."
    )


def targets(comparison: Comparison, charts: Charts) -> Markup:
    """Return the cost to each target."""
    made = [tables.target_table(comparison, target) for target in comparison.targets]
    values = {"tables": made, "reference": comparison.reference.name, "never": tables.NEVER}
    return render("targets", values) if made else Markup()


def equal_cost(comparison: Comparison, charts: Charts) -> Markup:
    """Return what each algorithm has reached where all have spent the same."""
    table = tables.equal_cost_table(comparison)
    if table is None:
        return Markup()
    return render("equal_cost", {"table": table, "reference": comparison.reference.name})


def _tick_row(scale: Scale, wanted: int = 3) -> list[Word]:
    ticks = scale.ticks(wanted)
    places = scale.share(np.array(ticks)) * 100
    return [Word("", f"left:{p:.1f}%", tick_label(v)) for v, p in zip(ticks, places, strict=True)]


def _domain(values: Sequence[float], zero: bool) -> Scale:
    known = [value for value in values if math.isfinite(value)] + [0.0] * zero
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.04 * (high - low or 1.0)
    return Scale(low - margin, high + margin)


@dataclass(frozen=True, kw_only=True)
class _FinalRow:
    """An algorithm in the table of final values."""

    index: int
    is_reference: bool
    cells: tuple[str, ...]
    seeds: str  # what hovering over the dots shows
    dots: list[Stroke]
    difference: str  # what hovering over the interval shows
    interval: list[Stroke]


def finals(comparison: Comparison, charts: Charts) -> Markup:
    """Return the final metric of each seed and the paired differences, as a table with plots in it."""
    table, own = tables.final_table(comparison), comparison.reference
    finals = [entry.final(comparison.metric) for entry in comparison.entries]
    pairs = [comparison.paired(entry) for entry in comparison.entries]
    x = _domain([value for final in finals for value in final.values()], zero=False)
    d = _domain([value for pair in pairs for value in (pair.mean, pair.low, pair.high)], zero=True)
    rows = [
        _FinalRow(
            index=index,
            is_reference=entry is own,
            cells=cells,
            seeds=", ".join(f"seed {seed}: {tables.number(value)}" for seed, value in values.items()),
            dots=seed_strokes(x, list(values.values()), comparison.spread(entry).mean),
            difference=f"{entry.name} − {own.name}: {cells[-4]} {cells[-3]}",
            interval=[] if entry is own else interval_strokes(d, pair.mean, pair.low, pair.high),
        )
        for index, (entry, cells, values, pair) in enumerate(
            zip(comparison.entries, table.rows, finals, pairs, strict=True)
        )
    ]
    heads = (table.header[0], "each seed and the mean", *table.header[1:-4], f"minus {own.name}", "mean")
    ticks = {"value_ticks": _tick_row(x), "difference_ticks": _tick_row(d)}
    values = {"header": (*heads, *table.header[-3:]), "num_values": len(table.header) - 5}
    return render("finals", {**values, "rows": rows, "note": table.note, **ticks})


@dataclass(frozen=True, kw_only=True)
class _ClassRow:
    """An algorithm in the heat map."""

    index: int
    is_reference: bool
    name: str
    values: list[float | None]  # accuracy of each class
    forgotten: int


def classes(comparison: Comparison, charts: Charts) -> Markup:
    """Return the heat map of accuracies by class."""
    rows = [
        _ClassRow(
            index=index,
            is_reference=entry is comparison.reference,
            name=entry.name,
            values=[None if math.isnan(value) else value for value in entry.class_accuracy.tolist()],
            forgotten=int((entry.class_accuracy < FORGOTTEN).sum()),
        )
        for index, entry in enumerate(comparison.entries)
        if len(entry.class_accuracy)
    ]
    width = max((len(row.values) for row in rows), default=0)
    values = {"rows": rows, "width": width, "never": tables.NEVER, "forgotten": FORGOTTEN}
    return render("classes", values) if rows else Markup()


def objective(comparison: Comparison, charts: Charts) -> Markup:
    """Return Omega against w and the chi-square distance over the rounds."""
    cards, distance = omega_cards(comparison), Markup()
    if all("chi2" in run.metrics for run in comparison.runs):
        chart = Chart(
            identity="chi-square", x_label="rounds", y_label="χ² distance of Ω from w", height=250, logarithmic=True
        )
        distance, charts[chart.identity] = line_chart(chart, series(comparison, "round", "chi2"))
    return render("objective", {"cards": cards, "distance": distance}) if cards or distance else Markup()


def fairness(comparison: Comparison, charts: Charts) -> Markup:
    """Return each client's own accuracy against its share of the objective, where clients were evaluated."""
    cards = fairness_cards(comparison)
    return render("fairness", {"cards": cards}) if cards else Markup()


def participation(comparison: Comparison, charts: Charts) -> Markup:
    """Return draws and deliveries against the plan."""
    cards = participation_cards(comparison)
    return render("participation", {"cards": cards}) if cards else Markup()


def conditions(comparison: Comparison, charts: Charts) -> Markup:
    """Return T and q, and whether all algorithms met the same."""
    return condition_charts(comparison)
