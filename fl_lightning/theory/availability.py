"""Clients that are not always there: whom rounds count, how many they draw, and how far a day moves the model."""

from functools import reduce

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector, columns

_NODES = 96  # of the quadrature


def replaced_shares(scores: npt.ArrayLike, presence: npt.ArrayLike) -> Vector:
    r"""Return the mean share of each client among those who are there, where they take the place of the others, (M,).

    .. math::
        \mathrm{E}\Bigl[\frac{s_m I_m}{\sum_j s_j I_j} \Bigm| \sum_j I_j > 0\Bigr]
        = \frac{s_m a_m \int_0^\infty e^{-s_m x} \prod_{j \ne m} (1 - a_j + a_j e^{-s_j x})\,dx}{1 - \prod_j (1 - a_j)}

    for independent :math:`I_m \sim \mathrm{Bernoulli}(a_m)`: 1/y is the integral of :math:`e^{-xy}`. Multiplied by
    (1-q) c A it is what a server optimises that always draws among those who are there.

    >>> replaced_shares([0.5, 0.5], [1.0, 0.5]).round(6).tolist()
    [0.75, 0.25]
    """
    s, a = columns(scores=scores, presence=presence)
    inside = (a > 0) & (s > 0)
    shares = np.zeros(len(s))
    if not inside.any():
        return shares
    s, a = s[inside], np.minimum(a[inside], 1.0)
    ends = np.log(np.array([1e-9 / s.max(), 60.0 / s.min()]))  # x = e^y, which spans all scales of s
    nodes, lengths = np.polynomial.legendre.leggauss(_NODES * max(1, int(np.ptp(ends) / 12)))
    x = np.exp(ends.mean() + 0.5 * np.ptp(ends) * nodes)
    decays = np.exp(-np.outer(x, s))  # (nodes, inside)
    factors = 1 - a + a * decays
    products = np.exp(np.log(np.maximum(factors, 1e-300)).sum(axis=1))
    integrals = 0.5 * np.ptp(ends) * (lengths * x * products) @ (decays / np.maximum(factors, 1e-300))
    shares[inside] = s * a * integrals / -np.expm1(np.log1p(-np.minimum(a, 1 - 1e-15)).sum())
    return shares


def numbers_there(presence: npt.ArrayLike) -> Vector:
    r"""Return P(N = n) of the number of clients that are there, (M + 1,): :math:`\prod_m (1 - a_m + a_m z)`.

    >>> numbers_there([0.5, 0.5]).tolist()
    [0.25, 0.5, 0.25]
    """
    (a,) = columns(presence=presence)
    return reduce(np.convolve, np.stack([1 - a, a], axis=1), np.ones(1))


def expected_draws(presence: npt.ArrayLike, num_draws: int) -> tuple[float, float]:
    r"""Return how many are drawn, and how often fewer than K: :math:`\mathrm{E}[\min(K, N) | N > 0], P(N < K | N > 0)`.

    >>> [round(value, 6) for value in expected_draws([0.5, 0.5], 2)]
    [1.333333, 0.666667]
    """
    chances = numbers_there(presence)
    chances[0] = 0.0
    chances = chances / chances.sum()
    return float(chances @ np.minimum(np.arange(len(chances)), num_draws)), float(chances[:num_draws].sum())


def absence_variance(effective: npt.ArrayLike, presence: npt.ArrayLike) -> float:
    r"""Return what absence adds to the variance of a step, over its squared length, where w is divided by presence.

    .. math:: \sum_m \Omega_m^2 \Bigl(\frac{1}{a_m} - 1\Bigr)

    A client that is there in a share a of the rounds counts 1/a times then. Draws do not average it out: it stays
    however many clients are drawn, and falls with their number M alone.

    >>> absence_variance([0.5, 0.5], [1.0, 0.01])
    24.75
    """
    omega, a = columns(effective=effective, presence=presence)
    ratios = np.divide(1.0, a, out=np.ones(len(a)), where=a > 0) - 1
    return float(omega**2 @ ratios)


def limited_presence_weights(weights: npt.ArrayLike, presence: npt.ArrayLike, longest: float) -> Vector:
    r"""Return Omega where nobody is counted for more than ``longest`` rounds of absence: the price of a limit, (M,).

    .. math:: \Omega_m \propto w_m \min(1, L a_m)

    >>> limited_presence_weights([0.5, 0.5], [0.5, 0.01], longest=50).round(6).tolist()
    [0.666667, 0.333333]
    """
    w, a = columns(weights=weights, presence=presence)
    omega = w * np.minimum(1.0, longest * a)
    return omega / omega.sum()


def absence_limit(weights: npt.ArrayLike, presence: npt.ArrayLike, variance: float = 0.5, least: float = 10.0) -> float:
    r"""Return the largest L at which absence adds no more than ``variance`` to that of a step; infinite where all fits.

    .. math:: \max \Bigl\{ L : \sum_m \Omega_m^2 (1 / a_m - 1) \le v \Bigr\}, \qquad \Omega_m \propto w_m \min(1, L a_m)

    Many clients need no limit, because the variance falls with their number; a few of which some are hardly ever there
    do. So few clients may vary more than that under any limit: a limit below ``least`` would only add bias.

    >>> absence_limit(np.full(1000, 1e-3), np.full(1000, 0.01)), round(absence_limit([0.5, 0.5], [0.5, 0.001]))
    (inf, 10)
    """
    w, a = columns(weights=weights, presence=presence)
    if not (a > 0).any() or absence_variance(limited_presence_weights(w, a, 1e300), a) <= variance:
        return float("inf")
    low, high = float(np.log(least)), float(-np.log(a[a > 0].min()))
    for _ in range(40):
        middle = 0.5 * (low + high)
        fits = absence_variance(limited_presence_weights(w, a, float(np.exp(middle))), a) <= variance
        low, high = (middle, high) if fits else (low, middle)
    return float(np.exp(low))


def periodic_weights(contributions: npt.ArrayLike, rate: float) -> Vector:
    r"""Return with which weights the optima of quadratic clients make up the model at each hour of a day, (P, M).

    With the contributions :math:`g_{tm}` of clients in the rounds of a day and losses of curvature 1 the model is

    .. math:: x_{t+1} = x_t - \eta \sum_m g_{tm} (x_t - x^*_m)

    whose periodic solution is returned, W with :math:`x_t = \sum_m W_{tm} x^*_m`, after each round. The rows go around
    :math:`\Omega \propto \sum_t g_t`: over a day the biases of the hours cancel up to terms in :math:`\eta`, and
    within it the model drifts by :math:`\eta \sum_t \|g_t - \mathrm{mean}\|` at most.

    >>> periodic_weights([[0.5, 0.0], [0.0, 0.5]], rate=1e-9).round(6).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    steps = rate * np.asarray(contributions, dtype=np.float64)
    kept = 1 - steps.sum(axis=1)
    if steps.ndim != 2 or not (np.abs(kept) < 1).all():
        raise ValueError("contributions must be (P, M) and rate so small that each step is shorter than 2")
    start = np.zeros(steps.shape[1])
    for own, rest in zip(steps, kept, strict=True):
        start = rest * start + own
    rows = [start / (1 - np.prod(kept))]  # after a day it is again what it was
    for own, rest in zip(steps, kept, strict=True):
        rows.append(rest * rows[-1] + own)
    return np.asarray(rows[1:])
