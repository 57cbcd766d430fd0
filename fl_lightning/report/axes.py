"""Drawings of 1000 by 1000 units, which the page stretches to any size: axes, strokes and words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector

SIZE = 1000
Places = list[tuple[int, int]]


class Stroke(NamedTuple):
    """A path of a drawing; an empty one is left out."""

    kind: str  # its CSS classes
    path: str


class Word(NamedTuple):
    """A text on a drawing."""

    kind: str  # its CSS class
    place: str  # its CSS position
    text: str


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis."""

    low: float
    high: float
    logarithmic: bool = False

    def share(self, values: npt.ArrayLike) -> Vector:
        """Return the places as shares of the axis, values outside brought to its ends.

        >>> Scale(0, 2).share([0.0, 1.0, 5.0]).tolist()
        [0.0, 0.5, 1.0]
        >>> Scale(0.01, 1, True).share([0.1]).tolist()
        [0.5]
        """
        given = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        low, high = self.low, self.high
        if self.logarithmic:
            given = np.log10(given)
            low, high = math.log10(low), math.log10(high)
        return np.asarray((given - low) / ((high - low) or 1.0), dtype=np.float64)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return round values along the axis.

        >>> Scale(0, 0.93).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8]
        >>> Scale(0.001, 1, True).ticks()
        [0.001, 0.01, 0.1, 1.0]
        """
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first < 2:  # few powers of ten: add 2 and 5 times them
                values = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
                return [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
            step = max(1, math.ceil((last - first) / wanted))
            return [10.0**power for power in range(first, last + 1, step)]
        raw = (self.high - self.low) / wanted or 1.0
        unit = 10.0 ** math.floor(math.log10(raw))
        size = min((factor * unit for factor in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / raw)))
        first, last = math.ceil(self.low / size - 1e-9), math.floor(self.high / size + 1e-9)
        return [round(index * size, 12) for index in range(first, last + 1)]

    def words(self, kind: str, side: Literal["left", "top"], texts: dict[float, str], digits: int = 2) -> list[Word]:
        """Return texts at values of this axis, which counts from a side.

        >>> Scale(0, 4).words("yt", "top", {1.0: "one"})
        [Word(kind='yt', place='top:75.00%', text='one')]
        """
        shares = self.share(list(texts))
        places = (1 - shares if side == "top" else shares) * 100
        return [
            Word(kind, f"{side}:{place:.{digits}f}%", text) for place, text in zip(places, texts.values(), strict=True)
        ]

    def tick_words(self, kind: str, side: Literal["left", "top"], wanted: int, digits: int = 2) -> list[Word]:
        """Return the numbers along the axis."""
        return self.words(kind, side, {tick: tick_label(tick) for tick in self.ticks(wanted)}, digits)


@dataclass(frozen=True)
class Plane:
    """Two axes, and what is drawn between them; y grows upwards."""

    x: Scale
    y: Scale

    def points(self, xs: npt.ArrayLike, ys: npt.ArrayLike) -> Places:
        """Return the places of points."""
        across = np.rint(self.x.share(xs) * SIZE).astype(int)
        down = np.rint((1 - self.y.share(ys)) * SIZE).astype(int)
        return list(zip(across.tolist(), down.tolist(), strict=True))

    def dots(self, kind: str, xs: npt.ArrayLike, ys: npt.ArrayLike) -> Stroke:
        """Return points as lines of no length, which round caps draw as dots that stretching leaves round.

        >>> Plane(Scale(0, 1), Scale(0, 1)).dots("dot", [0.0, 0.5], [1.0, 0.25]).path
        'M0 0h0M500 750h0'
        """
        return Stroke(kind, "".join(f"M{x} {y}h0" for x, y in self.points(xs, ys)))

    def rows(self, kind: str, values: Sequence[float]) -> Stroke:
        """Return horizontal lines at values of y."""
        down = [place for _, place in self.points(np.zeros(len(values)), values)]
        return Stroke(kind, "".join(f"M0 {place}h{SIZE}" for place in down))

    def grid(self, wanted: int = 5) -> Stroke:
        """Return the horizontal lines at the ticks."""
        return self.rows("grid", self.y.ticks(wanted))


def nice_top(value: float) -> float:
    """Return a round number at or above a value.

    >>> nice_top(0.43), nice_top(0.93), nice_top(230.0)
    (0.45, 1.0, 250.0)
    """
    if not 0 < value < math.inf:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10)
    return float(round(next((s for s in steps if s * unit >= value * (1 - 1e-9)), 10) * unit, 12))


def tick_label(value: float) -> str:
    """Return a short text for a tick.

    >>> tick_label(0.2), tick_label(150.0), tick_label(12000.0), tick_label(1e-6)
    ('0.2', '150', '12k', '1e−6')
    """
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e−").replace("e-", "e−")
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}".replace("-", "−")


def line(places: Places) -> str:
    """Return the path through points, each given by its step from the one before.

    >>> line([(0, 10), (5, 8), (9, 8)])
    'M0 10l5-2 4 0'
    """
    if not places:
        return ""
    steps = [(x - left, y - up) for (left, up), (x, y) in pairwise(places)]
    text = "".join(
        f"{' ' if index and dx >= 0 else ''}{dx}{' ' if dy >= 0 else ''}{dy}" for index, (dx, dy) in enumerate(steps)
    )
    return f"M{places[0][0]} {places[0][1]}" + (f"l{text}" if text else "h0")
