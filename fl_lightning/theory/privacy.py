r"""What a round reveals about one client, as Rényi divergences: pure functions, all clients at once.

Two federations are neighbours if one client adds nothing to any sum in the second one and all else is the same: who
the clients are, their weights, work and links, and the draws ("zero-out"). A client that was drawn n times moves the
sum by at most n times its sensitivity, and Gaussian noise of a given size hides that; ``ratios`` are sensitivity over
the standard deviation of the noise. Divergences of several rounds add up.
"""

import math

import numpy as np

from fl_lightning.theory.checks import Vector

# Those below 2 matter where epsilon is large: without them it is several times too large. Those above 32 matter where
# it is small. Whole ones have a closed form.
_LOW = (
    1.01,
    1.02,
    1.03,
    1.05,
    1.07,
    1.1,
    1.15,
    1.2,
    1.25,
    1.3,
    1.4,
    1.5,
    1.6,
    1.75,
    2,
    2.25,
    2.5,
    2.75,
    3,
    3.5,
    4,
    4.5,
)
ORDERS: Vector = np.array([*_LOW, *range(5, 33), 36, 40, 48, 56, 64, 80, 96, 128, 192, 256], dtype=np.float64)
_MOST_RATIO = 40.0  # ratio of sensitivity to noise up to which is integrated
_REACH = 12.0  # standard deviations of a Gaussian over which is integrated
_ROWS = 4096  # clients worked on at once, which bounds the memory


def binomial_probabilities(num_draws: int, probabilities: Vector) -> Vector:
    """Return P(n = k) of K independent draws for each client, (M, K + 1).

    >>> binomial_probabilities(2, np.array([0.5, 0.0])).round(6).tolist()
    [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]
    """
    return np.exp(_log_binomial(num_draws, probabilities[:, None]))


def _log_binomial(num_draws: int, probabilities: Vector) -> Vector:
    """Return log P(n = k) for k = 0 .. K, (M, K + 1)."""
    k = np.arange(num_draws + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, num_draws + 1)))])
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.where(k > 0, k * np.log(probabilities), 0.0)  # 0 log 0 = 0
        others = np.where(k < num_draws, (num_draws - k) * np.log1p(-probabilities), 0.0)
    return np.asarray(factorials[-1] - factorials - factorials[::-1] + drawn + others)


def _log_sum(logs: Vector) -> Vector:
    """Return log sum exp of each row, (n,)."""
    largest = logs.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logs - largest[:, None]).sum(axis=1)))


def sampled_divergence(rates: Vector, ratios: Vector, orders: Vector = ORDERS) -> Vector:
    r"""Return the Rényi divergence of a round that each client joins by itself, and nobody knows who did, (n, orders).

    .. math:: D_\alpha = \frac{1}{\alpha - 1} \log \sum_{k=0}^\alpha \binom{\alpha}{k} (1-r)^{\alpha-k} r^k
        e^{k (k-1) x^2 / 2}

    with r the rate and x the ratio (Mironov, Talwar and Zhang 2019); at r = 1 it is that of the Gaussian mechanism,
    :math:`\alpha x^2 / 2`. At an order between two whole numbers it is :math:`\log \mathrm{E}[(1 - r + r
    e^{x z - x^2 / 2})^\alpha] / (\alpha - 1)` over a standard normal z, by the trapezoidal rule, which is exact to
    rounding for such integrands. Each client has a rate of its own: nothing is assumed about the others.

    >>> sampled_divergence(np.array([1.0]), np.array([0.5]), np.array([2.0, 4.0])).round(6).tolist()
    [[0.25, 0.5]]
    """
    pairs, places = np.unique(np.stack([rates, ratios], axis=1), axis=0, return_inverse=True)
    if len(pairs) < len(rates):  # many clients are alike
        return sampled_divergence(pairs[:, 0], pairs[:, 1], orders)[places.reshape(-1)]
    if len(rates) > _ROWS:
        parts = range(0, len(rates), _ROWS)
        return np.concatenate([sampled_divergence(rates[i : i + _ROWS], ratios[i : i + _ROWS], orders) for i in parts])
    columns = [np.maximum(_log_moment(float(order), rates, ratios), 0.0) / (order - 1) for order in orders]
    return np.stack(columns, axis=1)


def _log_moment(order: float, rates: Vector, ratios: Vector) -> Vector:
    """Return log E[(1 - r + r exp(x z - x^2 / 2))^alpha] of each pair, (n,)."""
    if order.is_integer():
        k = np.arange(int(order) + 1)
        return _log_sum(_log_binomial(int(order), rates[:, None]) + k * (k - 1) * ratios[:, None] ** 2 / 2)
    if len(rates) and ratios.max() > _MOST_RATIO:  # nothing is private there: a bound will do, for logs are convex
        below, share = math.floor(order), order % 1
        bound = share * _log_moment(below + 1.0, rates, ratios)
        if below > 1:
            bound += (1 - share) * _log_moment(float(below), rates, ratios)
        few = ratios <= _MOST_RATIO
        bound[few] = _log_moment(order, rates[few], ratios[few])
        return bound
    moments = np.empty(len(rates))
    reach = np.ceil(order * ratios / _REACH) * _REACH  # alike for many, so that they share their points
    for last in np.unique(reach):
        some = reach == last
        r, x = rates[some, None], ratios[some, None]
        spacing = min(0.25, 0.75 / max(float(x.max()), 1e-9))  # the integrand has poles at a distance of pi / x
        z = np.arange(-_REACH, last + _REACH + spacing, spacing)
        with np.errstate(divide="ignore"):
            logs = np.logaddexp(np.log1p(-r), np.log(r) + x * z - x**2 / 2)
        moments[some] = _log_sum(order * logs - z**2 / 2) + np.log(spacing / np.sqrt(2 * np.pi))
    return moments


def shown_divergence(counts: Vector, ratios: Vector, orders: Vector = ORDERS, fixed: Vector | float = 0.0) -> Vector:
    r"""Return the Rényi divergence of a round whose draws may be known to everybody, (n, orders).

    .. math:: D_\alpha = \frac{1}{\alpha - 1} \log \sum_n \mathrm{P}(n)\, e^{\alpha (\alpha-1) (n x)^2 / 2}

    This holds for all ways of drawing, however the draws of different clients depend on each other, because it is the
    divergence of the pair (draws, noisy sum): :math:`e^{(\alpha-1) D_\alpha}` is its mean over the draws. There is no
    amplification by secrecy in it; a client is safe in a round in which it is not drawn.

    Args:
        counts: P(n = k) of each client, (n, largest k + 1).
        ratios: x, sensitivity of one draw over the standard deviation, (n,).
        orders: alpha.
        fixed: Squared ratio of what a client reveals besides, once, if it is drawn at all.

    >>> shown_divergence(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.5]), np.array([4.0])).tolist()
    [[0.5], [0.0]]
    """
    k = np.arange(counts.shape[1])
    squares = (k * ratios[:, None]) ** 2 + np.where(k > 0, np.reshape(fixed, (-1, 1)), 0.0)
    with np.errstate(divide="ignore"):
        logs = np.log(counts)
    columns = [_log_sum(logs + order * (order - 1) * squares / 2) / (order - 1) for order in orders]
    return np.maximum(np.stack(columns, axis=1), 0.0)


def epsilons(divergences: Vector, delta: float, orders: Vector = ORDERS) -> Vector:
    r"""Return epsilon at delta of each row of Rényi divergences, (n,).

    .. math:: \epsilon = \min_\alpha\ D_\alpha + \log(1 - 1/\alpha) - \frac{\log(\delta \alpha)}{\alpha - 1}

    (Canonne, Kamath and Steinke 2020), and 0 where :math:`\delta^2 \ge 1 - e^{-D}`.

    >>> epsilons(np.zeros((1, len(ORDERS))), 1e-3).tolist()
    [0.0]
    """
    candidates = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    candidates = np.where(delta**2 + np.expm1(-divergences) > 0, 0.0, candidates)
    return np.asarray(np.maximum(candidates.min(axis=1), 0.0))
