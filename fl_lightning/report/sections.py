"""The sections of the page: each returns the values of its template, or nothing where there is nothing to show."""

import math
from collections.abc import Sequence

from fl_lightning.report import tables
from fl_lightning.report.axes import Scale
from fl_lightning.report.charts import (
    Chart,
    Charts,
    Values,
    interval_strokes,
    line_chart,
    num_points,
    omega_cards,
    seed_strokes,
)
from fl_lightning.report.comparison import AXES, Comparison

FORGOTTEN = 0.1


def curves(comparison: Comparison, charts: Charts) -> Values:
    """Return the metric against rounds, local steps and computation time."""
    drawings = {}
    for axis in AXES:
        chart = Chart(
            identity=f"curve-{axis}",
            axis=axis,
            metric=comparison.metric,
            y_label=comparison.metric_name,
            height=430 if axis == "round" else 250,
            marks=comparison.targets,
            logarithmic=not comparison.maximised,
            direct_labels=axis == "round",
        )
        drawings[axis] = line_chart(comparison, chart, charts)
    longest = max(len(run.metrics["round"]) for run in comparison.runs)
    return {
        "drawings": drawings,
        "num_seeds": len(comparison.seeds),
        "every_round_is_drawn": longest <= num_points(comparison),
    }


def targets(comparison: Comparison, charts: Charts) -> Values | None:
    """Return the cost to each target."""
    made = [tables.target_table(comparison, target) for target in comparison.targets]
    return {"tables": made, "reference": comparison.reference.name, "never": tables.NEVER} if made else None


def equal_cost(comparison: Comparison, charts: Charts) -> Values | None:
    """Return what each algorithm has reached where all have spent the same."""
    table = tables.equal_cost_table(comparison)
    return {"table": table, "reference": comparison.reference.name} if table else None


def _domain(values: Sequence[float], zero: bool) -> Scale:
    known = [value for value in values if math.isfinite(value)] + [0.0] * zero
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.04 * (high - low or 1.0)
    return Scale(low - margin, high + margin)


def finals(comparison: Comparison, charts: Charts) -> Values:
    """Return the final metric of each seed and the paired differences, as a table with plots in it."""
    table, own = tables.final_table(comparison), comparison.reference
    finals = [entry.final(comparison.metric) for entry in comparison.entries]
    pairs = [comparison.paired(entry) for entry in comparison.entries]
    x = _domain([value for final in finals for value in final.values()], zero=False)
    d = _domain([value for pair in pairs for value in (pair.mean, pair.low, pair.high)], zero=True)
    rows = [
        {
            "index": index,
            "is_reference": entry is own,
            "cells": cells,
            "seeds": ", ".join(f"seed {seed}: {tables.number(value)}" for seed, value in values.items()),
            "dots": seed_strokes(x, list(values.values()), comparison.spread(entry).mean),
            "difference": f"{entry.name} − {own.name}: {cells[-4]} {cells[-3]}",
            "interval": [] if entry is own else interval_strokes(d, pair.mean, pair.low, pair.high),
        }
        for index, (entry, cells, values, pair) in enumerate(
            zip(comparison.entries, table.rows, finals, pairs, strict=True)
        )
    ]
    heads = (table.header[0], "each seed and the mean", *table.header[1:-4], f"minus {own.name}", "mean")
    return {
        "header": (*heads, *table.header[-3:]),
        "num_values": len(table.header) - 5,
        "rows": rows,
        "note": table.note,
        "value_ticks": x.tick_words("", "left", 3, digits=1),
        "difference_ticks": d.tick_words("", "left", 3, digits=1),
    }


def classes(comparison: Comparison, charts: Charts) -> Values | None:
    """Return the heat map of accuracies by class."""
    rows = [
        {
            "index": index,
            "is_reference": entry is comparison.reference,
            "name": entry.name,
            "accuracies": [None if math.isnan(value) else value for value in entry.class_accuracy.tolist()],
            "forgotten": int((entry.class_accuracy < FORGOTTEN).sum()),
        }
        for index, entry in enumerate(comparison.entries)
        if len(entry.class_accuracy)
    ]
    width = max((len(entry.class_accuracy) for entry in comparison.entries), default=0)
    return {"rows": rows, "width": width, "never": tables.NEVER, "forgotten": FORGOTTEN} if rows else None


def objective(comparison: Comparison, charts: Charts) -> Values | None:
    """Return Omega against w and the chi-square distance over the rounds."""
    cards, distance = omega_cards(comparison), None
    if all("chi2" in run.metrics for run in comparison.runs):
        chart = Chart(
            identity="chi-square",
            axis="round",
            metric="chi2",
            y_label="χ² distance of Ω from w",
            height=250,
            logarithmic=True,
        )
        distance = line_chart(comparison, chart, charts)
    return {"cards": cards, "distance": distance} if cards or distance else None
