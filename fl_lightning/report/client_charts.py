"""Small charts of the clients, one for each algorithm: who took part, and whose objective it was."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fl_lightning.report.charts import Stroke, Word, grid, tick_words
from fl_lightning.report.comparison import Comparison, Entry
from fl_lightning.report.rendering import render
from fl_lightning.report.scales import SIZE, Scale, dots, line, nice_top, points
from fl_lightning.report.statistics import Vector, binned

_BINS = 60


@dataclass(frozen=True, kw_only=True)
class _Card:
    """A small drawing with a title."""

    title: str
    strokes: list[Stroke]
    words: list[Word]
    index: int = 0  # of the algorithm
    note: str = ""


def _cards(cards: Sequence[_Card]) -> Markup:
    return render("cards", {"cards": cards}) if cards else Markup()


def _clients(num_clients: int) -> Scale:
    return Scale(-0.5, max(num_clients, 1) - 0.5)


def _ratio_words(y: Scale) -> list[Word]:
    tick = math.floor(0.75 * math.log2(y.high) + 1e-9) or 1
    names = [(2.0**-tick, f"1/{2**tick}"), (1.0, "1"), (2.0**tick, f"{2**tick}")]
    places = 1 - y.share(np.array([value for value, _ in names]))
    return [Word("yt", f"top:{place * 100:.1f}%", name) for (_, name), place in zip(names, places, strict=True)]


def omega_cards(comparison: Comparison) -> Markup:
    """Return Omega / w of every client for each algorithm, on one logarithmic axis: 1 is what the user asked for."""
    ratios: list[tuple[int, Entry, Vector]] = []
    for index, entry in enumerate(comparison.entries):
        weight, effective = entry.client_mean("weight"), entry.client_mean("effective_weight")
        if len(weight) and len(weight) == len(effective) and np.isfinite(effective).all():
            ratio = np.divide(effective, weight, out=np.ones_like(weight), where=weight > 0)
            ratios.append((index, entry, binned(ratio, _BINS)))
    if not ratios:
        return Markup()
    distances = np.abs(np.log2(np.maximum(np.concatenate([ratio for _, _, ratio in ratios]), 2.0**-6)))
    reach = 2.0 ** max(1.0, math.ceil(float(np.quantile(distances, 0.95)) + 0.25))
    y = Scale(1 / reach, reach, True)
    cards = []
    for index, entry, ratio in ratios:
        x = _clients(len(ratio))
        places = points(x, y, np.arange(len(ratio), dtype=np.float64), ratio)
        stems = "".join(f"M{across} {SIZE // 2}V{down}" for across, down in places)
        strokes = [Stroke("base", f"M0 {SIZE // 2}h{SIZE}"), Stroke("stem", stems), Stroke("dot", dots(places))]
        distance = float(np.nanmean([np.nanmean(run.metrics["chi2"]) for run in entry.runs if "chi2" in run.metrics]))
        note = "χ² 0" if distance < 1e-12 else f"χ² {distance:.2g}".replace("inf", "∞")
        cards.append(_Card(title=entry.name, strokes=strokes, words=_ratio_words(y), index=index, note=note))
    return _cards(cards)


def fairness_cards(comparison: Comparison) -> Markup:
    """Return the accuracy of every client against its Omega / w for each algorithm: who is neglected fares worse."""
    shown: list[tuple[int, Entry, Vector, Vector]] = []
    for index, entry in enumerate(comparison.entries):
        columns = [entry.client_mean(name) for name in ("weight", "effective_weight", "accuracy")]
        if len({len(column) for column in columns}) == 1 and len(columns[2]) and np.isfinite(columns[1:]).all():
            weight, effective, accuracy = columns
            shown.append(
                (index, entry, np.divide(effective, weight, out=np.ones_like(weight), where=weight > 0), accuracy)
            )
    if not shown:
        return Markup()
    reach = max(2.0, *(float(np.maximum(ratio, 1 / np.maximum(ratio, 2.0**-6)).max()) for _, _, ratio, _ in shown))
    x, y = Scale(1 / reach, reach, True), Scale(0.0, 1.0)
    cards = []
    for index, entry, ratio, accuracy in shown:
        strokes = [grid(y, 3), Stroke("dot", dots(points(x, y, np.clip(ratio, 1 / reach, reach), accuracy)))]
        note = f"worst {np.sort(accuracy)[: max(1, round(0.1 * len(accuracy)))].mean():.2f}, mean {accuracy.mean():.2f}"
        ends = [Word("xt", "left:0%", f"Ω/w {1 / reach:.2g}"), Word("xt", "left:100%", f"{reach:.2g}")]
        words = [*tick_words(None, y, 3), *ends]
        cards.append(_Card(title=entry.name, strokes=strokes, words=words, index=index, note=note))
    return _cards(cards)


def participation_cards(comparison: Comparison) -> Markup:
    """Return draws and deliveries of every client in a round, on average, against the plan."""
    shown: list[tuple[int, Entry, list[Vector]]] = []
    for index, entry in enumerate(comparison.entries):
        num_rounds = float(np.mean([len(run.metrics["round"]) for run in entry.runs]))
        columns = [entry.client_mean(name) / num_rounds for name in ("expected_draws", "draws", "deliveries")]
        if all(len(column) for column in columns):
            shown.append((index, entry, [binned(column, _BINS) for column in columns]))
    if not shown:
        return Markup()
    y = Scale(0.0, nice_top(max(float(np.nanmax(columns)) for _, _, columns in shown)))
    cards = []
    for index, entry, (plan, draws, deliveries) in shown:
        x, clients = _clients(len(plan)), np.arange(len(plan), dtype=np.float64)
        width = max(1, SIZE // (2 * len(plan)) - 3)
        bars = "".join(f"M{across - width} {down}h{2 * width}" for across, down in points(x, y, clients, plan))
        strokes = [
            grid(y, 3),
            Stroke("plan", bars),
            Stroke("ring", dots(points(x, y, clients, deliveries))),
            Stroke("dot", dots(points(x, y, clients, draws))),
        ]
        note, words = f"{draws.sum():.3g} per round", tick_words(None, y, 3)
        cards.append(_Card(title=entry.name, strokes=strokes, words=words, index=index, note=note))
    return _cards(cards)


def condition_charts(comparison: Comparison) -> Markup:
    """Return T and q of every client as drawn, one dot for each seed, averaged over the rounds, and if all met them."""
    charts = []
    for column, name in (("num_steps", "local steps T"), ("failure_rate", "failure probability q")):
        rows = [binned(run.clients[column], 4 * _BINS) for run in comparison.reference.runs if column in run.clients]
        if not rows or len({len(row) for row in rows}) != 1:
            continue
        x, clients = _clients(len(rows[0])), np.arange(len(rows[0]), dtype=np.float64)
        y = Scale(0.0, nice_top(float(np.max(rows))))
        soft = [Stroke("dot soft", dots(points(x, y, clients, row))) for row in rows]
        mean = Stroke("dot", dots(points(x, y, clients, np.mean(rows, axis=0))))
        charts.append(_Card(title=name, strokes=[grid(y, 4), *soft, mean], words=tick_words(x, y, 4)))
    names = {"unpaired": comparison.unpaired, "reference": comparison.reference.name}
    return render("conditions", {"charts": charts, **names})


def seed_strokes(x: Scale, values: Sequence[float], mean: float) -> list[Stroke]:
    """Return a row of a dot plot: one faint dot for each seed, a strong one for the mean."""
    if math.isnan(mean):
        return []
    middle = Scale(0, 1)

    def at(numbers: Sequence[float]) -> list[tuple[int, int]]:
        return points(x, middle, np.asarray(numbers, dtype=np.float64), np.full(len(numbers), 0.5))

    known = [value for value in values if not math.isnan(value)]
    return [Stroke("dot soft", dots(at(known))), Stroke("dot", dots(at([mean])))]


def interval_strokes(x: Scale, mean: float, low: float, high: float) -> list[Stroke]:
    """Return a row of a forest plot: the interval, the mean, and the line of no difference."""
    if math.isnan(mean):
        return []
    middle, half = Scale(0, 1), np.full(1, 0.5)

    def at(value: float) -> tuple[int, int]:
        return points(x, middle, np.array([value]), half)[0]

    whisker = "" if math.isnan(low) else line([at(low), at(high)])
    return [Stroke("base", f"M{at(0.0)[0]} 0v{SIZE}"), Stroke("whisker", whisker), Stroke("dot", dots([at(mean)]))]
