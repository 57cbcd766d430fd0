"""The charts of the page: stretched SVG for the lines, ordinary text for the words, so that both fit any width.

Each function returns the values of its template, or nothing where the runs do not know them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fl_lightning.figures.style import apart
from fl_lightning.report.axes import SIZE, Plane, Scale, Stroke, Word, line, nice_top
from fl_lightning.report.comparison import AXES, Comparison, offered
from fl_lightning.report.statistics import Band, binned
from fl_lightning.theory.checks import Vector

MANY = 12  # algorithms, beyond which curves have fewer points
_BINS = 60  # of clients
_LABEL_GAP = 14.5  # pixels
_INFINITE = 9e99
_FLOOR = 1e-6  # of a logarithmic axis
_STRETCH = 3  # how many times the median's cost the highest may be on a linear axis

Values = dict[str, object]  # of a template
Charts = dict[str, Values]  # what hovering shows, by the chart's name


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What a line chart shows, and how it looks."""

    identity: str
    axis: str  # of the comparison's AXES
    metric: str
    y_label: str
    height: int = 260  # pixels
    marks: tuple[float, ...] = ()  # thresholds
    logarithmic: bool = False
    direct_labels: bool = False

    @property
    def x_label(self) -> str:
        """The axis in words."""
        return AXES[self.axis]


class _Curve(NamedTuple):
    """One algorithm on a chart."""

    place: int  # in the ranking, which names its colour
    name: str
    kind: str  # the CSS classes of its marks
    band: Band


def num_points(comparison: Comparison) -> int:
    """Return of how many points a curve is made at most."""
    return 200 if len(comparison.entries) <= MANY else 100


def _curves(comparison: Comparison, chart: Chart) -> list[_Curve]:
    made = []
    for index, entry in enumerate(comparison.entries):
        kind = f"e e{index}" + " ref" * (entry is comparison.reference)
        band = entry.band(chart.axis, chart.metric, num_points(comparison))
        made.append(_Curve(index, entry.name, kind, band))
    return [curve for curve in made if len(curve.band.x)]


def _across(curves: Sequence[_Curve]) -> Scale:
    """Return the x-axis: logarithmic where some spend so much that the rest would be pressed together."""
    ends = sorted(float(curve.band.x[-1]) for curve in curves) or [1.0]
    starts = sorted(float(curve.band.x[0]) for curve in curves if curve.band.x[0] > 0)
    if starts and ends[-1] > _STRETCH * ends[len(ends) // 2]:
        return Scale(min(starts[len(starts) // 2], ends[0]), ends[-1], True)
    return Scale(0.0, ends[-1])


def _up(chart: Chart, curves: Sequence[_Curve]) -> Scale:
    highest = [float(c.band.high[np.isfinite(c.band.high)].max(initial=0.0)) for c in curves]
    top = max([*highest, *(1.06 * mark for mark in chart.marks)], default=1.0)  # room for a mark's name
    lowest = [float(c.band.mean[np.isfinite(c.band.mean)].min(initial=top)) for c in curves]
    if not chart.logarithmic:
        return Scale(min([0.0, *lowest]), nice_top(top))
    low = 10.0 ** math.floor(math.log10(max(_FLOOR, min([*lowest, *chart.marks], default=_FLOOR))))
    return Scale(low, max(10 * low, 10.0 ** math.ceil(math.log10(max(top, low)))), True)


def _strokes(plane: Plane, curves: Sequence[_Curve]) -> list[Stroke]:
    bands, lines = [], []
    for curve in reversed(curves):  # the best on top
        band = curve.band
        if len(band.x) == 1:
            lines.append(plane.dots(f"dot {curve.kind}", band.x, band.mean))
            continue
        if not np.array_equal(band.low, band.high):
            edge = plane.points(band.x, band.high) + plane.points(band.x, band.low)[::-1]
            bands.append(Stroke(f"band {curve.kind}", line(edge) + "z"))
        lines.append(Stroke(f"line {curve.kind}", line(plane.points(band.x, band.mean))))
    return bands + lines


def _direct_labels(chart: Chart, y: Scale, curves: Sequence[_Curve]) -> list[Values]:
    """Return the names at the ends of their lines, moved apart; ends and places are pixels from the top."""
    shown = curves[: int(chart.height / _LABEL_GAP)]
    ends = [float((1 - y.share(curve.band.mean[-1:]))[0]) * chart.height for curve in shown]
    places = apart(ends, _LABEL_GAP, 0, chart.height)
    return [
        {"index": curve.place, "kind": curve.kind, "name": curve.name, "end": end, "place": round(place, 2)}
        for curve, end, place in zip(shown, ends, places, strict=True)
    ]


def _rounded(values: Vector) -> list[float | None]:
    """Return values with four digits, to be sent along with the page; a huge number stands for what is infinite."""
    finite = np.clip(values, -_INFINITE, _INFINITE).tolist()
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in finite]


def line_chart(comparison: Comparison, chart: Chart, charts: Charts) -> Values:
    """Return a chart for its template, and put the values that hovering over it shows beside those of the others."""
    curves = _curves(comparison, chart)
    plane = Plane(_across(curves), _up(chart, curves))
    x, y = plane.x, plane.y
    charts[chart.identity] = {
        "x": [x.low, x.high],
        "y": [y.low, y.high],
        "xlog": x.logarithmic,
        "ylog": y.logarithmic,
        "xl": chart.x_label,
        "s": [
            {"i": curve.place, "x": _rounded(curve.band.x), "m": _rounded(curve.band.mean)}
            | {"l": _rounded(curve.band.low), "h": _rounded(curve.band.high)}
            for curve in curves
        ],
    }
    targets = y.words("mt", "top", {mark: f"target {mark:g}" for mark in chart.marks})
    marks = [plane.rows("mark", [mark]) for mark in chart.marks]
    return {
        "chart": chart,
        "logarithmic": x.logarithmic,
        "strokes": [plane.grid(), *marks, *_strokes(plane, curves)],
        "words": [*x.tick_words("xt", "left", 6), *y.tick_words("yt", "top", 5), *targets],
        "labels": _direct_labels(chart, y, curves) if chart.direct_labels else [],
    }


def _side_by_side(num_clients: int, y: Scale) -> tuple[Plane, Vector]:
    return Plane(Scale(-0.5, max(num_clients, 1) - 0.5), y), np.arange(num_clients, dtype=np.float64)


def omega_cards(comparison: Comparison) -> list[Values]:
    """Return Omega / w of every client for each algorithm, on one logarithmic axis: 1 is what the user asked for."""
    shown = [(i, entry, binned(entry.ratios, _BINS)) for i, entry in enumerate(comparison.entries) if len(entry.ratios)]
    if not shown:
        return []
    distances = np.abs(np.log2(np.maximum(np.concatenate([ratio for _, _, ratio in shown]), 2.0**-6)))
    reach = 2.0 ** max(1.0, math.ceil(float(np.quantile(distances, 0.95)) + 0.25))
    y = Scale(1 / reach, reach, True)
    tick = math.floor(0.75 * math.log2(reach) + 1e-9) or 1
    words = y.words("yt", "top", {2.0**-tick: f"1/{2**tick}", 1.0: "1", 2.0**tick: f"{2**tick}"}, digits=1)
    cards: list[Values] = []
    for index, entry, ratio in shown:
        plane, clients = _side_by_side(len(ratio), y)
        stems = "".join(f"M{across} {SIZE // 2}V{down}" for across, down in plane.points(clients, ratio))
        strokes = [plane.rows("base", [1.0]), Stroke("stem", stems), plane.dots("dot", clients, ratio)]
        distance = float(np.nanmean([np.nanmean(run.metrics["chi2"]) for run in entry.runs if "chi2" in run.metrics]))
        note = "χ² 0" if distance < 1e-12 else f"χ² {distance:.2g}".replace("inf", "∞")
        cards.append({"index": index, "title": entry.name, "note": note, "strokes": strokes, "words": words})
    return cards


def fairness(comparison: Comparison) -> Values | None:
    """Return the metric of every client against its Omega / w for each algorithm: who is neglected fares worse."""
    name = comparison.metric.removeprefix("test_")
    rows = [(index, entry, entry.client_mean(name)) for index, entry in enumerate(comparison.entries)]
    shown = [row for row in rows if len(row[2]) and len(row[2]) == len(row[1].ratios) and np.isfinite(row[2]).all()]
    if not shown:
        return None
    reach = max(2.0, *(float(np.maximum(e.ratios, 1 / np.maximum(e.ratios, 2.0**-6)).max()) for _, e, _ in shown))
    lowest, highest = (float(end([end(values) for _, _, values in shown])) for end in (np.min, np.max))
    y = Scale(min(0.0, lowest), nice_top(highest) if highest > 1 else 1.0)
    plane = Plane(Scale(1 / reach, reach, True), y)
    ends = [Word("xt", "left:0%", f"Ω/w {1 / reach:.2g}"), Word("xt", "left:100%", f"{reach:.2g}")]
    words = [*plane.y.tick_words("yt", "top", 3), *ends]
    cards = []
    for index, entry, values in shown:
        worst_first = np.sort(values) if comparison.maximised else -np.sort(-values)
        worst = worst_first[: max(1, round(0.1 * len(values)))].mean()
        note = f"worst {worst:.2f}, mean {values.mean():.2f}"
        strokes = [plane.grid(3), plane.dots("dot", entry.ratios, values)]
        cards.append({"index": index, "title": entry.name, "note": note, "strokes": strokes, "words": words})
    return {"cards": cards, "metric": comparison.metric_name.removeprefix("test ")}


def participation(comparison: Comparison) -> Values | None:
    """Return draws and deliveries of every client in a round, on average, against the plan."""
    shown = []
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
        plane, clients = _side_by_side(len(plan), y)
        width = max(1, SIZE // (2 * len(plan)) - 3)
        bars = "".join(f"M{across - width} {down}h{2 * width}" for across, down in plane.points(clients, plan))
        strokes = [
            plane.grid(3),
            Stroke("plan", bars),
            plane.dots("ring", clients, deliveries),
            plane.dots("dot", clients, draws),
        ]
        note, words = f"{draws.sum():.3g} per round", y.tick_words("yt", "top", 3)
        cards.append({"index": index, "title": entry.name, "note": note, "strokes": strokes, "words": words})
    return {"cards": cards}


def conditions(comparison: Comparison) -> Values:
    """Return T and q of every client as drawn, one dot for each seed, averaged over the rounds, and if all met them."""
    cards = []
    for column, name in (("num_steps", "local steps T"), ("failure_rate", "failure probability q")):
        rows = [binned(met[column], 4 * _BINS) for met in map(offered, comparison.reference.runs) if column in met]
        if not rows or len({len(row) for row in rows}) != 1:
            continue
        plane, clients = _side_by_side(len(rows[0]), Scale(0.0, nice_top(float(np.max(rows)))))
        soft = [plane.dots("dot soft", clients, row) for row in rows]
        strokes = [plane.grid(4), *soft, plane.dots("dot", clients, np.mean(rows, axis=0))]
        words = [*plane.x.tick_words("xt", "left", 5), *plane.y.tick_words("yt", "top", 4)]
        cards.append({"title": name, "strokes": strokes, "words": words})
    return {"charts": cards}


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
