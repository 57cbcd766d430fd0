"""Small charts of the clients, one for each algorithm: who took part, and whose objective it was."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from fl_lightning.report.charts import grid, stroke, svg, tick_words
from fl_lightning.report.comparison import Comparison, Entry
from fl_lightning.report.scales import SIZE, Scale, dots, line, nice_top, points
from fl_lightning.report.statistics import Vector, binned

_BINS = 60


def _card(index: int, title: str, note: str, drawing: str, words: str) -> str:
    return (
        f'<figure class="card e e{index}" data-e="{index}"><figcaption><b class="swatch"></b>{escape(title)}'
        f'<small>{escape(note)}</small></figcaption><div class="plot small">{drawing}{words}</div></figure>'
    )


def _clients(num_clients: int) -> Scale:
    return Scale(-0.5, max(num_clients, 1) - 0.5)


def _ratio_words(y: Scale) -> str:
    tick = math.floor(0.75 * math.log2(y.high) + 1e-9) or 1
    names = [(2.0**-tick, f"1/{2**tick}"), (1.0, "1"), (2.0**tick, f"{2**tick}")]
    places = 1 - y.share(np.array([value for value, _ in names]))
    return "".join(
        f'<i class="yt" style="top:{place * 100:.1f}%">{name}</i>'
        for (_, name), place in zip(names, places, strict=True)
    )


def omega_cards(comparison: Comparison) -> str:
    """Return Omega / w of every client for each algorithm, on one logarithmic axis: 1 is what the user asked for."""
    ratios: list[tuple[int, Entry, Vector]] = []
    for index, entry in enumerate(comparison.entries):
        weight, effective = entry.client_mean("weight"), entry.client_mean("effective_weight")
        if len(weight) and len(weight) == len(effective) and np.isfinite(effective).all():
            ratio = np.divide(effective, weight, out=np.ones_like(weight), where=weight > 0)
            ratios.append((index, entry, binned(ratio, _BINS)))
    if not ratios:
        return ""
    distances = np.abs(np.log2(np.maximum(np.concatenate([ratio for _, _, ratio in ratios]), 2.0**-6)))
    reach = 2.0 ** max(1.0, math.ceil(float(np.quantile(distances, 0.95)) + 0.25))
    y = Scale(1 / reach, reach, True)
    cards = []
    for index, entry, ratio in ratios:
        x = _clients(len(ratio))
        places = points(x, y, np.arange(len(ratio), dtype=np.float64), ratio)
        stems = "".join(f"M{across} {SIZE // 2}V{down}" for across, down in places)
        drawing = svg(stroke("base", f"M0 {SIZE // 2}h{SIZE}"), stroke("stem", stems), stroke("dot", dots(places)))
        distance = float(np.nanmean([np.nanmean(run.metrics["chi2"]) for run in entry.runs if "chi2" in run.metrics]))
        note = "χ² 0" if distance < 1e-12 else f"χ² {distance:.2g}".replace("inf", "∞")
        cards.append(_card(index, entry.name, note, drawing, _ratio_words(y)))
    return f'<div class="cards">{"".join(cards)}</div>'


def participation_cards(comparison: Comparison) -> str:
    """Return draws and deliveries of every client in a round, on average, against the plan."""
    shown: list[tuple[int, Entry, list[Vector]]] = []
    for index, entry in enumerate(comparison.entries):
        num_rounds = float(np.mean([len(run.metrics["round"]) for run in entry.runs]))
        columns = [entry.client_mean(name) / num_rounds for name in ("expected_draws", "draws", "deliveries")]
        if all(len(column) for column in columns):
            shown.append((index, entry, [binned(column, _BINS) for column in columns]))
    if not shown:
        return ""
    y = Scale(0.0, nice_top(max(float(np.nanmax(columns)) for _, _, columns in shown)))
    cards = []
    for index, entry, (plan, draws, deliveries) in shown:
        x, clients = _clients(len(plan)), np.arange(len(plan), dtype=np.float64)
        width = max(1, SIZE // (2 * len(plan)) - 3)
        bars = "".join(f"M{across - width} {down}h{2 * width}" for across, down in points(x, y, clients, plan))
        arrived = dots(points(x, y, clients, deliveries))
        drawing = svg(
            grid(y, 3), stroke("plan", bars), stroke("ring", arrived), stroke("dot", dots(points(x, y, clients, draws)))
        )
        cards.append(_card(index, entry.name, f"{draws.sum():.3g} a round", drawing, tick_words(None, y, 3)))
    return f'<div class="cards">{"".join(cards)}</div>'


def condition_charts(comparison: Comparison) -> str:
    """Return T and q of every client as drawn, one dot for each seed, averaged over the rounds."""
    charts = []
    for column, name in (("num_steps", "local steps T"), ("failure_rate", "failure probability q")):
        rows = [binned(run.clients[column], 4 * _BINS) for run in comparison.reference.runs if column in run.clients]
        if not rows or len({len(row) for row in rows}) != 1:
            continue
        x, clients = _clients(len(rows[0])), np.arange(len(rows[0]), dtype=np.float64)
        y = Scale(0.0, nice_top(float(np.max(rows))))
        marks = "".join(stroke("dot soft", dots(points(x, y, clients, row))) for row in rows)
        mean = stroke("dot", dots(points(x, y, clients, np.mean(rows, axis=0))))
        charts.append(
            f'<div class="chart" style="--h:180px" role="img" aria-label="{name} of every client">'
            f'<p class="yl">{name}</p><div class="plot">{svg(grid(y, 4), marks, mean)}'
            f'{tick_words(_clients(len(rows[0])), y, 4)}</div><p class="xl">client</p></div>'
        )
    return f'<div class="pair">{"".join(charts)}</div>' if charts else ""


def strip(x: Scale, values: Sequence[float], mean: float) -> str:
    """Return a row of a dot plot: one faint dot for each seed, a strong one for the mean."""
    if math.isnan(mean):
        return ""
    middle = Scale(0, 1)

    def at(numbers: Sequence[float]) -> list[tuple[int, int]]:
        return points(x, middle, np.asarray(numbers, dtype=np.float64), np.full(len(numbers), 0.5))

    known = [value for value in values if not math.isnan(value)]
    return svg(stroke("dot soft", dots(at(known))), stroke("dot", dots(at([mean]))))


def interval_strip(x: Scale, mean: float, low: float, high: float) -> str:
    """Return a row of a forest plot: the interval, the mean, and the line of no difference."""
    if math.isnan(mean):
        return ""
    middle, half = Scale(0, 1), np.full(1, 0.5)

    def at(value: float) -> tuple[int, int]:
        return points(x, middle, np.array([value]), half)[0]

    zero = stroke("base", f"M{at(0.0)[0]} 0v{SIZE}")
    whisker = "" if math.isnan(low) else stroke("whisker", line([at(low), at(high)]))
    return svg(zero, whisker, stroke("dot", dots([at(mean)])))
