r"""What averaging over rounds leaves of the variance of the model.

On quadratics the model of a round is :math:`X_{r+1} - \tilde x = (1 - G_r)(X_r - \tilde x) + \xi_r` with independent
rounds, so that models k rounds apart have the covariance :math:`\rho^k V`, :math:`\rho = 1 - \mathrm{E}[G]`, exactly.
"""

import math
from collections.abc import Iterable


def exponential_average_factor(decay: float, contraction: float) -> float:
    r"""Return the variance of an exponential average relative to that of the model itself.

    .. math:: \frac{1 - \beta}{1 + \beta} \cdot \frac{1 + \beta \rho}{1 - \beta \rho}

    Args:
        decay: beta, the share of the average that a round keeps.
        contraction: rho, the share of its distance from the limit that the model keeps in a round.

    >>> round(exponential_average_factor(0.95, 0.0), 4), exponential_average_factor(0.0, 0.5)
    (0.0256, 1.0)
    """
    _check_shares(decay=decay, contraction=contraction)
    return (1 - decay) / (1 + decay) * (1 + decay * contraction) / (1 - decay * contraction)


def mean_factor(num_rounds: int, contraction: float) -> float:
    r"""Return the variance of the mean of the last n models relative to that of one of them.

    .. math:: \frac1n \Bigl[ \frac{1 + \rho}{1 - \rho} - \frac{2 \rho (1 - \rho^n)}{n (1 - \rho)^2} \Bigr]

    Args:
        num_rounds: n.
        contraction: rho, the share of its distance from the limit that the model keeps in a round.

    >>> mean_factor(4, 0.0), mean_factor(1, 0.9)
    (0.25, 1.0)
    """
    _check_shares(contraction=contraction)
    if num_rounds < 1:
        raise ValueError(f"num_rounds={num_rounds} must be at least 1")
    rho, n = contraction, num_rounds
    return round(((1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)) / n, 12)


def average_factor(rates: Iterable[float], contraction: float) -> float:
    r"""Return the variance of a running average relative to that of the model itself, for any sequence of rates.

    With :math:`Z_r = Z_{r-1} + \gamma_r (X_r - Z_{r-1})`, and v and c the variance of Z and its covariance with X,

    .. math::
        v_r = (1-\gamma_r)^2 v_{r-1} + 2 \gamma_r (1-\gamma_r) \rho c_{r-1} + \gamma_r^2, \qquad
        c_r = (1-\gamma_r) \rho c_{r-1} + \gamma_r

    Args:
        rates: gamma of each round.
        contraction: rho, the share of its distance from the limit that the model keeps in a round.

    >>> round(average_factor([1 / r for r in range(1, 5)], 0.0), 6), average_factor([1.0, 1.0], 0.9)
    (0.25, 1.0)
    """
    _check_shares(contraction=contraction)
    variance = covariance = 1.0
    for rate in rates:
        kept = 1 - rate
        variance = kept**2 * variance + 2 * rate * kept * contraction * covariance + rate**2
        covariance = kept * contraction * covariance + rate
    return variance


def _check_shares(**shares: float) -> None:
    for name, value in shares.items():
        if not (math.isfinite(value) and 0 <= value < 1):
            raise ValueError(f"{name}={value} must be in [0, 1)")
