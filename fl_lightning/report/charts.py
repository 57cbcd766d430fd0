"""Line charts for the page: stretched SVG for the lines, ordinary text for the words, so that both fit any width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.figures.style import apart
from fl_lightning.report.axes import Plane, Scale, Stroke, line, nice_top
from fl_lightning.report.comparison import AXES, Comparison
from fl_lightning.report.statistics import Band
from fl_lightning.theory.checks import Vector

MANY = 12  # algorithms, beyond which curves have fewer points
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


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """One algorithm on a chart."""

    index: int  # its place in the ranking, which names its colour
    name: str
    kind: str  # the CSS classes of its marks
    band: Band


def num_points(comparison: Comparison) -> int:
    """Return of how many points a curve is made at most."""
    return 200 if len(comparison.entries) <= MANY else 100


def _curves(comparison: Comparison, chart: Chart) -> list[_Curve]:
    made = [
        _Curve(
            index=index,
            name=entry.name,
            kind=f"e e{index}" + " ref" * (entry is comparison.reference),
            band=entry.band(chart.axis, chart.metric, num_points(comparison)),
        )
        for index, entry in enumerate(comparison.entries)
    ]
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
    if not chart.logarithmic:
        return Scale(0.0, nice_top(top))
    lowest = [float(c.band.mean[np.isfinite(c.band.mean)].min(initial=top)) for c in curves]
    low = 10.0 ** math.floor(math.log10(max(_FLOOR, min(lowest, default=_FLOOR))))
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
        {"index": curve.index, "kind": curve.kind, "name": curve.name, "end": end, "place": round(place, 2)}
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
            {
                "i": curve.index,
                "x": _rounded(curve.band.x),
                "m": _rounded(curve.band.mean),
                "l": _rounded(curve.band.low),
                "h": _rounded(curve.band.high),
            }
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
