"""From values to places on a chart of 1000 by 1000 units that the page stretches to any size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fl_lightning.report.statistics import Vector

SIZE = 1000


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis."""

    low: float
    high: float
    logarithmic: bool = False

    def share(self, values: Vector) -> Vector:
        """Return the places as shares of the axis, values outside brought to its ends.

        >>> Scale(0, 2).share(np.array([0.0, 1.0, 5.0])).tolist()
        [0.0, 0.5, 1.0]
        >>> Scale(0.01, 1, True).share(np.array([0.1])).tolist()
        [0.5]
        """
        low, high, given = self.low, self.high, np.clip(values, self.low, self.high)
        if self.logarithmic:
            low, high, given = math.log10(low), math.log10(high), np.log10(given)
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


def points(x: Scale, y: Scale, xs: Vector, ys: Vector) -> list[tuple[int, int]]:
    """Return the places of points; y grows upwards."""
    across = np.rint(x.share(xs) * SIZE).astype(int)
    down = np.rint((1 - y.share(ys)) * SIZE).astype(int)
    return list(zip(across.tolist(), down.tolist(), strict=True))


def line(places: Sequence[tuple[int, int]]) -> str:
    """Return the path through points, each told by its step from the one before.

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


def dots(places: Sequence[tuple[int, int]]) -> str:
    """Return a path of lines of no length, which round caps draw as dots that stretching leaves round.

    >>> dots([(1, 2), (3, 4)])
    'M1 2h0M3 4h0'
    """
    return "".join(f"M{x} {y}h0" for x, y in places)


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart so that none overlap, each as near to its place as their order allows.

    >>> apart([10, 11, 50], 5, 0, 100)
    [8.0, 13.0, 50.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[tuple[float, int]] = []  # centre of the block, labels in it
    for index in order:
        blocks.append((wanted[index], 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (upper, n), (lower, m) = blocks[-2], blocks[-1]
            blocks[-2:] = [((upper * n + lower * m) / (n + m), n + m)]
    placed = [centre + gap * (position - (size - 1) / 2) for centre, size in blocks for position in range(size)]
    placed = [max(place, low + gap * position) for position, place in enumerate(placed)]
    placed = [min(place, high - gap * (len(placed) - 1 - position)) for position, place in enumerate(placed)]
    result = [0.0] * len(wanted)
    for place, index in zip(placed, order, strict=True):
        result[index] = float(round(place, 2))
    return result
