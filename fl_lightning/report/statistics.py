"""The statistics of a comparison, as pure functions over numbers that come from the runs' files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    deviation: float  # NaN for a single seed
    count: int


@dataclass(frozen=True, kw_only=True)
class Band:
    """A curve over seeds: the mean, the lowest and the highest value at each point."""

    x: Vector
    mean: Vector
    low: Vector
    high: Vector


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Differences to the reference on the seeds that both have."""

    differences: Vector
    mean: float
    low: float  # ends of the confidence interval, NaN for fewer than two seeds
    high: float
    sign_test: float  # two-sided p-value


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What it took to reach a target."""

    mean: float  # over the seeds that reached it, NaN for none
    reached: int
    count: int
    ratio: float  # to the reference, over the seeds where both reached it, NaN for none


def spread(values: Iterable[float]) -> Spread:
    r"""Return mean and standard deviation, :math:`\sqrt{\sum_s (x_s - \bar x)^2 / (n - 1)}`; NaN values are left out.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """
    known = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    mean = float(known.mean()) if len(known) else math.nan
    return Spread(mean, float(known.std(ddof=1)) if len(known) > 1 else math.nan, len(known))


def confidence_interval(differences: npt.ArrayLike, level: float = 0.95) -> tuple[float, float]:
    r"""Return Student's interval for the mean of paired differences, :math:`\bar d \pm t_{n-1} s / \sqrt n`.

    >>> [round(end, 4) for end in confidence_interval([1.0, 2.0, 3.0])]
    [-0.4841, 4.4841]
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        return math.nan, math.nan
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.5 + level / 2)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


def sign_test(differences: npt.ArrayLike) -> float:
    r"""Return the exact two-sided p-value of the sign test, :math:`2 P(B \le \min(n_+, n_-))`; ties are left out.

    >>> sign_test([1.0, 2.0, 3.0]), sign_test([1.0, -1.0]), sign_test([0.0])
    (0.25, 1.0, 1.0)
    """
    signs = np.sign(differences)
    positive, negative = int((signs > 0).sum()), int((signs < 0).sum())
    total = positive + negative
    tail = sum(math.comb(total, k) for k in range(min(positive, negative) + 1))
    return min(1.0, 2 * tail / 2**total)


def paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Paired:
    """Compare two algorithms on the seeds that both have.

    >>> result = paired({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.6, 2: 0.9})
    >>> result.differences.round(3).tolist(), result.sign_test
    ([0.1, 0.1], 0.5)
    """
    differences = [values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())]
    known = np.array([value for value in differences if not math.isnan(value)], dtype=np.float64)
    low, high = confidence_interval(known)
    mean = float(known.mean()) if len(known) else math.nan
    return Paired(differences=known, mean=mean, low=low, high=high, sign_test=sign_test(known))


def cost(values: Mapping[int, float | None], reference: Mapping[int, float | None]) -> Cost:
    """Summarise what each seed took to reach the target (None: never), with the ratio to the reference.

    The ratio is that of the means over the seeds on which both reached it, so that a hard seed which only one of them
    mastered does not count against that one.

    >>> cost({0: 30.0, 1: 50.0, 2: None}, {0: 15.0, 1: 25.0, 2: 90.0})
    Cost(mean=40.0, reached=2, count=3, ratio=2.0)
    """
    known = [value for value in values.values() if value is not None]
    pairs = [(values[seed], reference[seed]) for seed in sorted(values.keys() & reference.keys())]
    both = [(own, other) for own, other in pairs if own is not None and other is not None]
    under = sum(other for _, other in both)
    ratio = sum(own for own, _ in both) / under if under else math.nan
    mean = sum(known) / len(known) if known else math.nan
    return Cost(mean=mean, reached=len(known), count=len(values), ratio=ratio)


def num_late(rounds: Vector) -> int:
    """Return how many rounds the last fifth of a run has, at least one.

    >>> num_late(np.arange(1.0, 151.0)), num_late(np.array([1.0]))
    (30, 1)
    """
    return max(1, math.ceil(0.2 * float(rounds[-1]) - 1e-9))


def late_mean(rounds: Vector, values: Vector) -> float:
    """Return the mean of what was measured in the last fifth of the rounds; NaN for nothing.

    >>> late_mean(np.arange(1.0, 11.0), np.array([0.0] * 8 + [0.4, 0.6]))
    0.5
    """
    late = values[rounds > rounds[-1] - num_late(rounds)]
    known = late[~np.isnan(late)]
    return float(known.mean()) if len(known) else math.nan


def at_cost(x: Vector, y: Vector, cost: float) -> float:
    """Return the value at a cost, between two evaluations on the line through them; NaN where it was never spent.

    Before the first evaluation it is the value of that one.

    >>> at_cost(np.array([2.0, 4.0]), np.array([0.2, 0.4]), 3.0)
    0.30000000000000004
    """
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    if not len(x) or cost > x[-1]:
        return math.nan
    return float(np.interp(cost, x, y))


def band(curves: Sequence[tuple[Vector, Vector]], num_points: int) -> Band:
    """Return mean, lowest and highest of several curves on one grid, as far as all of them go.

    Where all curves have the same x (rounds), the grid is made of those; elsewhere it is even, and each curve has its
    last known value there: a model is as good as when last evaluated.

    >>> x = np.array([1.0, 2.0])
    >>> band([(x, np.array([0.1, 0.3])), (x, np.array([0.3, 0.5]))], 10).mean.tolist()
    [0.2, 0.4]
    """
    kept = [(x[~np.isnan(y)], y[~np.isnan(y)]) for x, y in curves]
    kept = [(x, y) for x, y in kept if len(x)]
    if not kept:
        return Band(x=np.empty(0), mean=np.empty(0), low=np.empty(0), high=np.empty(0))
    first, last = max(x[0] for x, _ in kept), min(x[-1] for x, _ in kept)
    shared = kept[0][0][kept[0][0] <= last]
    if all(np.array_equal(x[x <= last], shared) for x, _ in kept):
        grid = shared[np.unique(np.rint(np.linspace(0, len(shared) - 1, min(num_points, len(shared)))).astype(int))]
    else:
        grid = np.linspace(first, max(first, last), num_points)
    values = np.stack([y[np.searchsorted(x, grid, side="right") - 1] for x, y in kept])  # no grid begins before a curve
    return Band(x=grid, mean=values.mean(0), low=values.min(0), high=values.max(0))


def binned(values: Vector, num_bins: int) -> Vector:
    """Return the means of equal stretches, so that a million clients can be drawn.

    >>> binned(np.arange(6.0), 3).tolist(), binned(np.arange(2.0), 3).tolist()
    ([0.5, 2.5, 4.5], [0.0, 1.0])
    """
    if len(values) <= num_bins:
        return values
    return np.array([part.mean() for part in np.array_split(values, num_bins)])
