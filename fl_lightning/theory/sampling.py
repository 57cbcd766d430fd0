"""Sampling probabilities in closed form, the variance of a step under them, and what averaging leaves of it."""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector, columns, require, require_rates

_LARGEST_EXACT, _LOG_STEP = 20_000, 0.1  # of inclusion in successive draws: M^2 K, and step of the rule in ln t


def heterogeneity_aware_probabilities(
    weights: npt.ArrayLike, failure_rates: npt.ArrayLike, accumulation: npt.ArrayLike
) -> Vector:
    r"""Return the probabilities of FedACS: the only ones for which plain averaging optimises the target objective.

    .. math:: p_m \propto \frac{w_m}{(1 - q_m) A_m}

    The constraint printed in the paper, :math:`(1-q_m) A_m p_m = \sum_j w_j (1-q_j) A_j p_j`, lacks the factor w on
    its right side and agrees with this solution only for equal weights; the solution is what gives Omega = w.

    >>> heterogeneity_aware_probabilities([0.5, 0.5], [0.0, 0.5], [2, 8])
    array([0.66666667, 0.33333333])
    """
    w, q, a = columns(weights=weights, failure_rates=failure_rates, accumulation=accumulation)
    _require_reachable(w, q)
    require(a > 0, "accumulation", "above 0")
    return _normalised(w / ((1 - q) * a))


def variance_optimal_probabilities(
    weights: npt.ArrayLike, failure_rates: npt.ArrayLike, gradient_norms: npt.ArrayLike = 1.0
) -> Vector:
    r"""Return the probabilities that minimise :func:`variance_factor`.

    .. math:: p_m \propto \frac{w_m g_m}{\sqrt{1 - q_m}}

    >>> variance_optimal_probabilities([0.5, 0.5], [0.0, 0.75])
    array([0.33333333, 0.66666667])
    """
    w, q, g = columns(weights=weights, failure_rates=failure_rates, gradient_norms=gradient_norms)
    _require_reachable(w, q)
    require(g >= 0, "gradient_norms", "at least 0")
    return _normalised(w * g / np.sqrt(1 - q))


def work_aware_probabilities(
    weights: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    num_steps: npt.ArrayLike,
    gradient_norms: npt.ArrayLike = 1.0,
) -> Vector:
    r"""Return the probabilities that minimise :func:`variance_factor` times expected work, :math:`\sum_m p_m T_m`.

    .. math:: p_m \propto \frac{w_m g_m}{\sqrt{(1 - q_m) T_m}}

    >>> work_aware_probabilities([0.5, 0.5], [0.0, 0.75], [1, 16])
    array([0.66666667, 0.33333333])
    """
    w, q, t, g = columns(
        weights=weights, failure_rates=failure_rates, num_steps=num_steps, gradient_norms=gradient_norms
    )
    _require_reachable(w, q)
    require(t > 0, "num_steps", "above 0")
    require(g >= 0, "gradient_norms", "at least 0")
    return _normalised(w * g / np.sqrt((1 - q) * t))


def consistent_coefficients(
    weights: npt.ArrayLike,
    probabilities: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    accumulation: npt.ArrayLike,
    scale: float = 1.0,
) -> Vector:
    r"""Return the factors that make any sampling optimise the target objective, with step length ``scale``.

    .. math:: c_m = \frac{s\, w_m}{p_m (1 - q_m) A_m}

    A client that is neither wanted nor drawn gets the factor 0.

    >>> consistent_coefficients([0.5, 0.5], [0.5, 0.5], [0.0, 0.5], [2, 8])
    array([0.5 , 0.25])
    """
    w, p, q, a = columns(
        weights=weights, probabilities=probabilities, failure_rates=failure_rates, accumulation=accumulation
    )
    _require_reachable(w, q)
    require(a > 0, "accumulation", "above 0")
    require((p > 0) | ((p == 0) & (w == 0)), "probabilities", "above 0 wherever the weight is")
    rate = p * (1 - q) * a
    return np.divide(scale * w, rate, out=np.zeros_like(rate), where=rate > 0)


def variance_factor(
    weights: npt.ArrayLike,
    probabilities: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    gradient_norms: npt.ArrayLike | None = None,
) -> float:
    r"""Return the factor of the sampling probabilities in the variance of one consistent step.

    .. math:: V(p) = \sum_m \frac{w_m^2 g_m^2}{p_m (1 - q_m)}

    Args:
        weights: w, (M,).
        probabilities: p, (M,).
        failure_rates: q, (M,).
        gradient_norms: g, norm of each client's mean gradient, (M,); 1 where it is not known.

    >>> variance_factor([0.5, 0.5], [0.5, 0.5], [0.0, 0.5])
    1.5
    """
    w, p, q, g = columns(
        weights=weights,
        probabilities=probabilities,
        failure_rates=failure_rates,
        gradient_norms=1.0 if gradient_norms is None else gradient_norms,
    )
    require(p >= 0, "probabilities", "at least 0")
    require_rates(q, certain=True)
    wanted, rate = (w * g) ** 2, p * (1 - q)
    if ((rate == 0) & (wanted > 0)).any():
        return float("inf")
    counted = rate > 0
    return float(np.sum(wanted[counted] / rate[counted]))


def harmonic_mean_steps(weights: npt.ArrayLike, num_steps: npt.ArrayLike) -> float:
    r"""Return the harmonic mean of the clients' local steps: the length of FedACS's step where no upload is lost.

    .. math:: \Bigl(\sum_m \frac{w_m}{T_m}\Bigr)^{-1}

    Asking nobody for more evens out the work, and with it how often clients are drawn and how far one of them can pull
    the model: with :math:`T' = \min(T, c)` the variance factor of FedACS,
    :math:`\bigl(\sum_m \frac{w_m}{(1-q_m) T'_m}\bigr) \bigl(\sum_m w_m T'_m\bigr)`, falls with c wherever those who
    are limited do not have the worse links.

    >>> harmonic_mean_steps([0.5, 0.5], [2, 6])
    3.0
    """
    w, t = columns(weights=weights, num_steps=num_steps)
    require(t > 0, "num_steps", "above 0")
    return float(w.sum() / (w / t).sum())


def successive_inclusion(probabilities: npt.ArrayLike, num_draws: int) -> Vector:
    r"""Return how probably each client is among K distinct ones that are drawn one after another by p, (M,).

    The draws are the K smallest of :math:`E_m / p_m` with :math:`E_m \sim \mathrm{Exp}(1)`, hence

    .. math::
        \pi_m = \int_0^\infty p_m e^{-p_m t} P(N_{-m}(t) < K)\, dt, \qquad
        N_{-m}(t) = \sum_{j \ne m} \mathrm{Ber}(1 - e^{-p_j t})

    by the trapezoidal rule in ln t, to 1e-9. Where :math:`M^2 K` is above 20,000, the limit for many clients stands for
    it: :math:`\pi_m = 1 - e^{-p_m t}` with t such that they sum to K (Rosen 1997).

    >>> successive_inclusion([0.5, 0.3, 0.2], 2).round(6).tolist()  # 0.5 + 0.3 / 0.7 * 0.5 + 0.2 / 0.8 * 0.5 = 0.839286
    [0.839286, 0.675, 0.485714]
    """
    (p,) = columns(probabilities=probabilities)
    require(p >= 0, "probabilities", "at least 0")
    drawable = np.flatnonzero(p)
    if num_draws > len(drawable):
        raise ValueError(
            f"{num_draws} distinct clients cannot be drawn: {len(drawable)} have a probability above 0; draw fewer"
        )
    inclusion = np.zeros(len(p))
    own = p[drawable] / p.sum()
    if num_draws == len(own):
        inclusion[drawable] = 1.0
        return inclusion
    time = _time_of_draws(own, num_draws)
    if len(own) ** 2 * num_draws > _LARGEST_EXACT:
        inclusion[drawable] = -np.expm1(-own * time)
        return inclusion
    times = time * np.exp(np.arange(-22.0 - math.log(max(1.0, own.max() * time)), 6.0, _LOG_STEP))
    density = np.outer(own, times) * np.exp(-np.outer(own, times))
    inclusion[drawable] = _LOG_STEP * (density * fewer_others(-np.expm1(-np.outer(own, times)), num_draws)).sum(axis=1)
    return inclusion


def _time_of_draws(probabilities: Vector, num_draws: int) -> float:
    """Return t with sum_m 1 - exp(-p_m t) = K, by bisection of ln t."""
    low, high = 0.0, math.log(700.0 / probabilities.min())
    for _ in range(80):
        middle = (low + high) / 2
        enough = -np.expm1(-probabilities * math.exp(middle)).sum() >= num_draws
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def fewer_others(chances: Vector, num_draws: int) -> Vector:
    """Return P(fewer than K others than m happen) of independent events, of each m at each time, (M, times).

    >>> fewer_others(np.array([[0.5], [0.5], [1.0]]), 1)[:, 0].tolist()
    [0.0, 0.0, 0.25]
    """
    counts = np.zeros((num_draws, *chances.shape))  # P(k of the others so far), k < K
    counts[0] = 1.0
    for client, chance in enumerate(chances):
        other = np.tile(chance, (len(chances), 1))
        other[client] = 0.0  # is no other of its own
        one_more = other * counts[:-1]
        counts *= 1 - other
        counts[1:] += one_more
    return np.asarray(counts.sum(axis=0))


def average_factor(rates: Iterable[float], contraction: float) -> float:
    r"""Return the variance of a running average of models relative to that of the model itself, for any rates.

    On quadratics models k rounds apart have the covariance :math:`\rho^k V` exactly, :math:`\rho` being the contraction
    of a round. With :math:`Z_r = Z_{r-1} + \gamma_r (X_r - Z_{r-1})`, and v and c the variance of Z and its covariance
    with X,

    .. math::
        v_r = (1-\gamma_r)^2 v_{r-1} + 2 \gamma_r (1-\gamma_r) \rho c_{r-1} + \gamma_r^2, \qquad
        c_r = (1-\gamma_r) \rho c_{r-1} + \gamma_r

    Args:
        rates: gamma of each round.
        contraction: rho, the share of its distance from the limit that the model keeps in a round.

    >>> round(average_factor([1 / r for r in range(1, 5)], 0.0), 6), average_factor([1.0, 1.0], 0.9)
    (0.25, 1.0)
    """
    if not (math.isfinite(contraction) and 0 <= contraction < 1):
        raise ValueError(f"contraction={contraction} must be in [0, 1)")
    variance = 1.0
    covariance = 1.0
    for rate in rates:
        kept = 1 - rate
        variance = kept**2 * variance + 2 * rate * kept * contraction * covariance + rate**2
        covariance = kept * contraction * covariance + rate
    return variance


def _require_reachable(weights: Vector, failure_rates: Vector) -> None:
    """Raise for negative weights and for clients that no sampling can make up for."""
    require(weights >= 0, "weights", "at least 0")
    require_rates(failure_rates)


def _normalised(amounts: Vector) -> Vector:
    total = float(amounts.sum())
    if not total > 0:
        raise ValueError("at least one client must have a positive weight and gradient norm, but none has")
    return amounts / total
