"""Line charts for the page: stretched SVG for the lines, ordinary text for the words, so that both fit any width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fl_lightning.report.rendering import render
from fl_lightning.report.scales import SIZE, Scale, apart, dots, line, nice_top, points, tick_label
from fl_lightning.report.statistics import Band, Vector

_LABEL_GAP = 14.5  # pixels
_INFINITE = 9e99
_STRETCH = 3  # how many times the median's cost the highest may be on a linear axis


@dataclass(frozen=True, kw_only=True)
class Series:
    """One algorithm on a chart; the index is its place in the ranking and names its colour."""

    index: int
    name: str
    band: Band
    is_reference: bool = False

    @property
    def kind(self) -> str:
        """The classes of its marks."""
        return f"e e{self.index}" + " ref" * self.is_reference


@dataclass(frozen=True, kw_only=True)
class Chart:
    """How a line chart looks."""

    identity: str
    x_label: str
    y_label: str
    height: int = 260  # pixels
    marks: tuple[float, ...] = ()  # thresholds
    logarithmic: bool = False
    floor: float = 1e-6  # of a logarithmic axis
    direct_labels: bool = False


class Stroke(NamedTuple):
    """A path of a drawing; an empty one is left out."""

    kind: str  # its CSS classes
    path: str


class Word(NamedTuple):
    """A text on a drawing."""

    kind: str  # its CSS class
    place: str  # its CSS position
    text: str


@dataclass(frozen=True, kw_only=True)
class _Label:
    """A name at the end of its line."""

    index: int
    kind: str
    name: str
    end: float  # of the line, pixels from the top
    place: float  # of the name, moved so that none overlap


def grid(y: Scale, wanted: int = 5) -> Stroke:
    """Return the horizontal lines at the ticks."""
    rows = [points(Scale(0, 1), y, np.zeros(1), np.array([tick]))[0][1] for tick in y.ticks(wanted)]
    return Stroke("grid", "".join(f"M0 {row}h{SIZE}" for row in rows))


def tick_words(x: Scale | None, y: Scale | None, wanted: int = 5) -> list[Word]:
    """Return the numbers along the axes."""
    across = x.ticks(wanted + 1) if x else []
    down = y.ticks(wanted) if y else []
    left = x.share(np.array(across)) if x else np.empty(0)
    top = 1 - y.share(np.array(down)) if y else np.empty(0)
    words = [Word("xt", f"left:{p * 100:.2f}%", tick_label(v)) for v, p in zip(across, left, strict=True)]
    return words + [Word("yt", f"top:{p * 100:.2f}%", tick_label(v)) for v, p in zip(down, top, strict=True)]


def _across(series: Sequence[Series]) -> Scale:
    """Return the x-axis: logarithmic where some spend so much that the rest would be pressed together."""
    ends = sorted(float(s.band.x[-1]) for s in series) or [1.0]
    starts = [float(s.band.x[0]) for s in series if s.band.x[0] > 0]
    if starts and ends[-1] > _STRETCH * ends[len(ends) // 2]:
        middle = sorted(starts)[len(starts) // 2]
        return Scale(min(middle, ends[0]), ends[-1], True)
    return Scale(0.0, ends[-1])


def _up(chart: Chart, series: Sequence[Series]) -> Scale:
    highest = [float(s.band.high[np.isfinite(s.band.high)].max(initial=0.0)) for s in series]
    top = max([*highest, *(1.06 * mark for mark in chart.marks)], default=1.0)  # room for a mark's name
    if not chart.logarithmic:
        return Scale(0.0, nice_top(top))
    lowest = [float(s.band.mean[np.isfinite(s.band.mean)].min(initial=top)) for s in series]
    low = 10.0 ** math.floor(math.log10(max(chart.floor, min(lowest, default=chart.floor))))
    return Scale(low, max(10 * low, 10.0 ** math.ceil(math.log10(max(top, low)))), True)


def _strokes(x: Scale, y: Scale, series: Sequence[Series]) -> list[Stroke]:
    bands, lines = [], []
    for one in reversed(series):  # the best on top
        band = one.band
        if len(band.x) == 1:
            lines.append(Stroke(f"dot {one.kind}", dots(points(x, y, band.x, band.mean))))
            continue
        if not np.array_equal(band.low, band.high):
            edge = points(x, y, band.x, band.high) + points(x, y, band.x, band.low)[::-1]
            bands.append(Stroke(f"band {one.kind}", line(edge) + "z"))
        lines.append(Stroke(f"line {one.kind}", line(points(x, y, band.x, band.mean))))
    return bands + lines


def _direct_labels(chart: Chart, y: Scale, series: Sequence[Series]) -> list[_Label]:
    """Return the names at the ends of their lines, moved apart."""
    room = int(chart.height / _LABEL_GAP)
    shown = list(series[:room])
    ends = [float((1 - y.share(one.band.mean[-1:]))[0]) * chart.height for one in shown]
    places = apart(ends, _LABEL_GAP, 0, chart.height)
    return [
        _Label(index=one.index, kind=one.kind, name=one.name, end=end, place=place)
        for one, end, place in zip(shown, ends, places, strict=True)
    ]


def rounded(values: Vector) -> list[float | None]:
    """Return values with four digits, to be sent along with the page; what is infinite is told by a huge number."""
    finite = np.clip(values, -_INFINITE, _INFINITE).tolist()
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in finite]


def line_chart(chart: Chart, series: Sequence[Series]) -> tuple[Markup, dict[str, Any]]:
    """Return a chart and the values that hovering over it shows."""
    drawn = [one for one in series if len(one.band.x)]
    x, y = _across(drawn), _up(chart, drawn)
    rows = [points(x, y, np.zeros(1), np.array([mark]))[0][1] for mark in chart.marks]
    tops = [float((1 - y.share(np.array([mark])))[0]) * 100 for mark in chart.marks]
    targets = [Word("mt", f"top:{top:.2f}%", f"target {mark:g}") for mark, top in zip(chart.marks, tops, strict=True)]
    html = render(
        "line_chart",
        {
            "chart": chart,
            "logarithmic": x.logarithmic,
            "strokes": [grid(y), *(Stroke("mark", f"M0 {row}h{SIZE}") for row in rows), *_strokes(x, y, drawn)],
            "words": tick_words(x, y) + targets,
            "labels": _direct_labels(chart, y, drawn) if chart.direct_labels else [],
        },
    )
    return html, _hover_values(chart, x, y, drawn)


def _hover_values(chart: Chart, x: Scale, y: Scale, series: Sequence[Series]) -> dict[str, Any]:
    return {
        "x": [x.low, x.high],
        "y": [y.low, y.high],
        "xlog": x.logarithmic,
        "ylog": y.logarithmic,
        "xl": chart.x_label,
        "s": [
            {
                "i": one.index,
                "x": rounded(one.band.x),
                "m": rounded(one.band.mean),
                "l": rounded(one.band.low),
                "h": rounded(one.band.high),
            }
            for one in series
        ],
    }
