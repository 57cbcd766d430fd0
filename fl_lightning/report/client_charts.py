"""Small charts of the clients, one for each algorithm: who took part, and whose objective it was.

Each returns the values of its template, or nothing where the runs do not know them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.report.axes import SIZE, Plane, Scale, Stroke, Word, line, nice_top
from fl_lightning.report.charts import Charts, Values
from fl_lightning.report.comparison import Comparison, Entry
from fl_lightning.report.statistics import binned
from fl_lightning.theory.checks import Vector

_BINS = 60


@dataclass(frozen=True, kw_only=True)
class _Card:
    """A small drawing with a title."""

    title: str
    strokes: list[Stroke]
    words: list[Word]
    index: int = 0  # of the algorithm
    note: str = ""


def _clients(num_clients: int, y: Scale) -> tuple[Plane, Vector]:
    """Return a plane with the clients side by side, and their numbers."""
    return Plane(Scale(-0.5, max(num_clients, 1) - 0.5), y), np.arange(num_clients, dtype=np.float64)


def omega_cards(comparison: Comparison) -> list[_Card]:
    """Return Omega / w of every client for each algorithm, on one logarithmic axis: 1 is what the user asked for."""
    shown = [(i, entry, binned(entry.ratios, _BINS)) for i, entry in enumerate(comparison.entries) if len(entry.ratios)]
    if not shown:
        return []
    distances = np.abs(np.log2(np.maximum(np.concatenate([ratio for _, _, ratio in shown]), 2.0**-6)))
    reach = 2.0 ** max(1.0, math.ceil(float(np.quantile(distances, 0.95)) + 0.25))
    y = Scale(1 / reach, reach, True)
    tick = math.floor(0.75 * math.log2(reach) + 1e-9) or 1
    words = y.words("yt", "top", {2.0**-tick: f"1/{2**tick}", 1.0: "1", 2.0**tick: f"{2**tick}"}, digits=1)
    cards = []
    for index, entry, ratio in shown:
        plane, clients = _clients(len(ratio), y)
        stems = "".join(f"M{across} {SIZE // 2}V{down}" for across, down in plane.points(clients, ratio))
        strokes = [plane.rows("base", [1.0]), Stroke("stem", stems), plane.dots("dot", clients, ratio)]
        distance = float(np.nanmean([np.nanmean(run.metrics["chi2"]) for run in entry.runs if "chi2" in run.metrics]))
        note = "χ² 0" if distance < 1e-12 else f"χ² {distance:.2g}".replace("inf", "∞")
        cards.append(_Card(title=entry.name, strokes=strokes, words=words, index=index, note=note))
    return cards


def fairness(comparison: Comparison, charts: Charts) -> Values | None:
    """Return the accuracy of every client against its Omega / w for each algorithm: who is neglected fares worse."""
    shown: list[tuple[int, Entry, Vector]] = []
    for index, entry in enumerate(comparison.entries):
        accuracy = entry.client_mean("accuracy")
        if len(accuracy) and len(accuracy) == len(entry.ratios) and np.isfinite(accuracy).all():
            shown.append((index, entry, accuracy))
    if not shown:
        return None
    reach = max(2.0, *(float(np.maximum(e.ratios, 1 / np.maximum(e.ratios, 2.0**-6)).max()) for _, e, _ in shown))
    plane = Plane(Scale(1 / reach, reach, True), Scale(0.0, 1.0))
    ends = [Word("xt", "left:0%", f"Ω/w {1 / reach:.2g}"), Word("xt", "left:100%", f"{reach:.2g}")]
    words = [*plane.y.tick_words("yt", "top", 3), *ends]
    cards = []
    for index, entry, accuracy in shown:
        worst = np.sort(accuracy)[: max(1, round(0.1 * len(accuracy)))].mean()
        note = f"worst {worst:.2f}, mean {accuracy.mean():.2f}"
        strokes = [plane.grid(3), plane.dots("dot", entry.ratios, accuracy)]
        cards.append(_Card(title=entry.name, strokes=strokes, words=words, index=index, note=note))
    return {"cards": cards}


def participation(comparison: Comparison, charts: Charts) -> Values | None:
    """Return draws and deliveries of every client in a round, on average, against the plan."""
    shown: list[tuple[int, Entry, list[Vector]]] = []
    for index, entry in enumerate(comparison.entries):
        num_rounds = float(np.mean([len(run.metrics["round"]) for run in entry.runs]))
        columns = [entry.client_mean(name) / num_rounds for name in ("expected_draws", "draws", "deliveries")]
        if all(len(column) for column in columns):
            shown.append((index, entry, [binned(column, _BINS) for column in columns]))
    if not shown:
        return None
    y = Scale(0.0, nice_top(max(float(np.nanmax(columns)) for _, _, columns in shown)))
    cards = []
    for index, entry, (plan, draws, deliveries) in shown:
        plane, clients = _clients(len(plan), y)
        width = max(1, SIZE // (2 * len(plan)) - 3)
        bars = "".join(f"M{across - width} {down}h{2 * width}" for across, down in plane.points(clients, plan))
        strokes = [
            plane.grid(3),
            Stroke("plan", bars),
            plane.dots("ring", clients, deliveries),
            plane.dots("dot", clients, draws),
        ]
        note, words = f"{draws.sum():.3g} per round", y.tick_words("yt", "top", 3)
        cards.append(_Card(title=entry.name, strokes=strokes, words=words, index=index, note=note))
    return {"cards": cards}


def conditions(comparison: Comparison, charts: Charts) -> Values:
    """Return T and q of every client as drawn, one dot for each seed, averaged over the rounds, and if all met them."""
    cards = []
    for column, name in (("num_steps", "local steps T"), ("failure_rate", "failure probability q")):
        rows = [binned(run.clients[column], 4 * _BINS) for run in comparison.reference.runs if column in run.clients]
        if not rows or len({len(row) for row in rows}) != 1:
            continue
        plane, clients = _clients(len(rows[0]), Scale(0.0, nice_top(float(np.max(rows)))))
        soft = [plane.dots("dot soft", clients, row) for row in rows]
        strokes = [plane.grid(4), *soft, plane.dots("dot", clients, np.mean(rows, axis=0))]
        words = [*plane.x.tick_words("xt", "left", 5), *plane.y.tick_words("yt", "top", 4)]
        cards.append(_Card(title=name, strokes=strokes, words=words))
    return {"charts": cards, "unpaired": comparison.unpaired, "reference": comparison.reference.name}


def seed_strokes(x: Scale, values: Sequence[float], mean: float) -> list[Stroke]:
    """Return a row of a dot plot: one faint dot for each seed, a strong one for the mean."""
    if math.isnan(mean):
        return []
    plane = Plane(x, Scale(0, 1))
    known = [value for value in values if not math.isnan(value)]
    return [plane.dots("dot soft", known, [0.5] * len(known)), plane.dots("dot", [mean], [0.5])]


def interval_strokes(x: Scale, mean: float, low: float, high: float) -> list[Stroke]:
    """Return a row of a forest plot: the interval, the mean, and the line of no difference."""
    if math.isnan(mean):
        return []
    plane = Plane(x, Scale(0, 1))
    ((zero, _),) = plane.points([0.0], [0.5])
    whisker = "" if math.isnan(low) else line(plane.points([low, high], [0.5, 0.5]))
    return [Stroke("base", f"M{zero} 0v{SIZE}"), Stroke("whisker", whisker), plane.dots("dot", [mean], [0.5])]
