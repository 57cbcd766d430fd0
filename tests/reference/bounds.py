r"""The convergence bounds of Theorems 1, 2 and 4, with the slips of the printed proofs corrected.

Let S be the expected step length :math:`\eta \sum_m p_m (1 - q_m) A_m`, A the largest accumulation and :math:`u = \eta
L A`. Assumptions: every :math:`F_m` is L-smooth; gradients are unbiased with variance at most :math:`\sigma^2`;
:math:`\sum_m \Omega_m \lVert \nabla F_m \rVert^2 \le \beta^2 \lVert \nabla \tilde F \rVert^2 + \kappa^2`; the weights
of the local gradients are nonnegative, and during a round no larger than at its end (true for SGD, momentum and
decayed learning rates, not for the proximal solver, whose older gradients fade); updates are averaged plainly (c = 1).

What differs from the printed theorems, and why:

* The initial gap is that of :math:`X_0`; Theorem 1 prints :math:`X_R`.
* The proof multiplies :math:`-\tfrac12 \lVert \nabla \tilde F \rVert^2` by :math:`\beta^2 \ge 1`, the wrong direction.
  The coefficient is :math:`-\tfrac12 + \beta^2 c(u)`, so the condition on the learning rate is :math:`\beta^2 c(u) \le
  \tfrac14`.
* The term of :math:`\kappa^2` is :math:`4 c(u) \kappa^2`; the printed :math:`\eta_\mathrm{eff} T_\mathrm{eff} \kappa^2
  / \beta^2` has a different physical dimension and is exceeded by real runs when L is large.
* The lemma on local drift leaves out gradient noise, and noise and local gradients of one round are taken as
  uncorrelated although later gradients depend on earlier noise. Both repairs are in the term of :math:`\sigma^2`.
* Theorem 4 divides each decrease by its own step length before it telescopes, which needs steps that never shrink.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.bias import contribution, step_length
from fl_lightning.theory.checks import Vector, columns, one_of, require

Average = Literal["rounds", "steps"]


@dataclass(frozen=True)
class Bound:
    """A bound on the mean squared gradient norm over the rounds, by its causes."""

    initial: float  # how far the start is from the optimum; vanishes as 1/R
    dissimilarity: float  # local drift of clients that disagree; vanishes with the learning rate
    noise: float  # gradient noise; vanishes with the learning rate

    @property
    def total(self) -> float:
        """The sum of the three."""
        return self.initial + self.dissimilarity + self.noise


def drift_coefficient(drift: float) -> float:
    r"""Return the factor of the clients' squared gradients in the descent lemma.

    .. math:: c(u) = \frac{u^2}{1 - 2 u^2} + \frac{2 u^3}{1 - 2 u^2} + u, \quad u = \eta L A

    >>> round(drift_coefficient(0.1), 6)
    0.112245
    """
    require_at_least(0, drift=drift)
    if 2 * drift**2 >= 1:
        return float("inf")
    return (drift**2 + 2 * drift**3) / (1 - 2 * drift**2) + drift


def largest_drift(beta_squared: float = 1.0) -> float:
    r"""Return the largest u for which the bounds hold, the root of :math:`\beta^2 c(u) = \tfrac14`.

    >>> round(largest_drift(), 5)
    0.19371
    """
    require_at_least(1, beta_squared=beta_squared)
    low, high = 0.0, 0.5
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return low
        low, high = (middle, high) if beta_squared * drift_coefficient(middle) <= 0.25 else (low, middle)


def largest_learning_rate(accumulation: npt.ArrayLike, smoothness: float, beta_squared: float = 1.0) -> float:
    r"""Return the largest learning rate for which the bounds hold, :math:`u_{\max} / (L \max_m A_m)`.

    >>> round(largest_learning_rate([10, 30], smoothness=1.0), 6)
    0.006457
    """
    (a,) = columns(accumulation=accumulation)
    require(a > 0, "accumulation", "above 0")
    require_at_least(0, strict=True, smoothness=smoothness)
    return largest_drift(beta_squared) / (smoothness * float(a.max()))


def surrogate_bound(
    *,
    learning_rate: float,
    probabilities: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    accumulation: npt.ArrayLike,
    smoothness: float,
    num_rounds: int,
    initial_gap: float,
    beta_squared: float = 1.0,
    kappa_squared: float = 0.0,
    noise_variance: float = 0.0,
) -> Bound:
    r"""Return the bound of Theorem 1 on the surrogate objective of a static federation.

    .. math::

        \frac1R \sum_{r=1}^R \mathbb E \lVert \nabla \tilde F(X_{r-1}) \rVert^2
        \le \frac{4 (\tilde F(X_0) - \tilde F^\star)}{R S} + 4 c(u) \kappa^2
        + \Big( 4 u + \frac{2 u^2 + 4 u^3}{1 - 2 u^2} \Big) \sigma^2

    See the module for what was corrected.

    Args:
        learning_rate: eta.
        probabilities: p, (M,).
        failure_rates: q, (M,).
        accumulation: A, (M,).
        smoothness: L.
        num_rounds: R.
        initial_gap: Surrogate objective at the start minus its minimum.
        beta_squared: Multiplicative dissimilarity, at least 1.
        kappa_squared: Additive dissimilarity.
        noise_variance: sigma squared.

    Raises:
        ValueError: The learning rate is too large for the theorem; the message names the largest one.

    >>> surrogate_bound(learning_rate=0.01, probabilities=[0.5, 0.5], failure_rates=0.5, accumulation=[5, 10],
    ...                 smoothness=1, num_rounds=400, initial_gap=1.5, kappa_squared=2.0)
    Bound(initial=0.4, dissimilarity=0.8979591836734695, noise=0.0)
    """
    _require_constants(initial_gap, beta_squared, kappa_squared, noise_variance)
    require_at_least(1, num_rounds=num_rounds)
    amounts, (a,) = contribution(probabilities, failure_rates, 1.0, accumulation), columns(accumulation=accumulation)
    require(a > 0, "accumulation", "above 0")
    (drift,) = _drifts(np.array([learning_rate]), a.max(keepdims=True), smoothness, beta_squared)
    return Bound(
        initial=4 * initial_gap / (num_rounds * learning_rate * step_length(amounts)),
        dissimilarity=4 * drift_coefficient(drift) * kappa_squared,
        noise=_noise_coefficient(drift) * noise_variance,
    )


def true_objective_bound(
    chi_square: float,
    kappa_squared: float,
    *,
    surrogate_error: float = 0.0,
    beta_squared: float = 1.0,
    noise_variance: float = 0.0,
) -> float:
    r"""Return the bound of Theorem 2 on the mean squared gradient norm of the true objective.

    .. math::

        \frac1R \sum_{r=1}^R \lVert \nabla F(X_{r-1}) \rVert^2 \le \Big( \sqrt{\epsilon}
        + \sqrt{\chi^2_{w \Vert \Omega} (\beta^2 \epsilon + \kappa^2)} \Big)^2 + \sigma^2
        \;\xrightarrow{\epsilon \to 0}\; \chi^2_{w \Vert \Omega} \kappa^2 + \sigma^2

    The printed theorem gives the limit alone, and as a limit where only the limit superior is known to exist.

    Args:
        chi_square: Distance of Omega from w, see :func:`fl_lightning.theory.chi_square`.
        kappa_squared: Additive dissimilarity at the weights Omega.
        surrogate_error: epsilon, what :func:`surrogate_bound` allows; 0 for the limit of many rounds and small steps.
        beta_squared: Multiplicative dissimilarity, at least 1.
        noise_variance: sigma squared, if the gradient is measured on random samples; 0 for the exact gradient.

    >>> true_objective_bound(0.5, 2.0), true_objective_bound(0.5, 2.0, noise_variance=0.1)
    (1.0, 1.1)
    >>> true_objective_bound(0.0, 2.0, surrogate_error=0.25)
    0.25
    """
    _require_constants(surrogate_error, beta_squared, kappa_squared, noise_variance)
    if not chi_square >= 0:
        raise ValueError(f"chi_square must be at least 0, but it is {chi_square!r}")
    if np.isinf(chi_square):
        return float("inf")
    distortion = chi_square * (beta_squared * surrogate_error + kappa_squared)
    return float(surrogate_error + distortion + 2 * np.sqrt(surrogate_error * distortion) + noise_variance)


def fedacs_bound(
    *,
    learning_rate: npt.ArrayLike,
    weights: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    accumulation: npt.ArrayLike,
    smoothness: float,
    initial_gap: float,
    beta_squared: float = 1.0,
    kappa_squared: float = 0.0,
    noise_variance: float = 0.0,
    average: Average = "rounds",
) -> Bound:
    r"""Return the bound of Theorem 4 on the true objective under FedACS, where T and q change from round to round.

    With the step lengths :math:`S_r = \eta_r / \sum_m w_m / ((1 - q_m^{(r)}) A_m^{(r)})` and :math:`u_r = \eta_r L
    \max_m A_m^{(r)}`, the mean that weighs round r with :math:`S_r` is bounded by

    .. math::

        \frac{4 (F(X_0) - F^\star)}{\sum_r S_r} + \frac{\sum_r S_r \, 4 c(u_r)}{\sum_r S_r} \kappa^2
        + \frac{\sum_r S_r \, n(u_r)}{\sum_r S_r} \sigma^2, \quad n(u) = 4 u + \frac{2 u^2 + 4 u^3}{1 - 2 u^2}

    and the plain mean over rounds by :math:`\bar S / S_{\min}` times that; per-round calibration makes the two equal.
    The printed theorem takes :math:`1 / S_{\min}` out of a telescoping sum, which holds only for steps that never
    shrink, and its :math:`C_r` lacks the factor :math:`T_\mathrm{eff}`.

    Args:
        learning_rate: eta, a number or one for each round, (R,).
        weights: w, (M,).
        failure_rates: q of each round, (R, M).
        accumulation: A of each round, (R, M).
        smoothness: L.
        initial_gap: Objective at the start minus its minimum.
        beta_squared: Multiplicative dissimilarity, at least 1.
        kappa_squared: Additive dissimilarity.
        noise_variance: sigma squared.
        average: Which mean over the rounds is bounded: the plain one or the one weighted with the step lengths.

    >>> bound = fedacs_bound(learning_rate=0.01, weights=[0.5, 0.5], failure_rates=[[0.5, 0.5]] * 400,
    ...                      accumulation=[[10, 10]] * 400, smoothness=1, initial_gap=1.5, kappa_squared=2.0)
    >>> round(bound.initial, 9), round(bound.dissimilarity, 9), round(bound.total, 9)
    (0.3, 0.897959184, 1.197959184)
    """
    _require_constants(initial_gap, beta_squared, kappa_squared, noise_variance)
    one_of("average", average, Average)
    steps, drifts = _fedacs_rounds(learning_rate, weights, failure_rates, accumulation, smoothness, beta_squared)
    factor = float(steps.mean() / steps.min()) if average == "rounds" else 1.0
    shares = factor * steps / steps.sum()
    return Bound(
        initial=factor * 4 * initial_gap / float(steps.sum()),
        dissimilarity=4 * kappa_squared * float(shares @ [drift_coefficient(drift) for drift in drifts]),
        noise=noise_variance * float(shares @ [_noise_coefficient(drift) for drift in drifts]),
    )


def distance_lower_bound(gradient_norm: float, smoothness: float) -> float:
    r"""Return how far the inconsistent solution is at least from the consistent one, by the gradient left there.

    .. math:: \lVert \tilde X^\star - X^\star \rVert \ge \frac1L \lVert \nabla F(\tilde X^\star) \rVert

    The gradient norm itself lies between 0 and :math:`\sqrt{\chi^2} \kappa`, the root of :func:`true_objective_bound`.

    >>> distance_lower_bound(0.5, smoothness=2.0)
    0.25
    """
    require_at_least(0, gradient_norm=gradient_norm)
    require_at_least(0, strict=True, smoothness=smoothness)
    return gradient_norm / smoothness


def _fedacs_rounds(
    learning_rate: npt.ArrayLike,
    weights: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    accumulation: npt.ArrayLike,
    smoothness: float,
    beta_squared: float,
) -> tuple[Vector, list[float]]:
    """Step length and drift of each round."""
    (w,) = columns(weights=weights)
    q = np.asarray(failure_rates, dtype=np.float64)
    a = np.asarray(accumulation, dtype=np.float64)
    if q.ndim != 2 or q.shape != a.shape or q.shape[1] != len(w) or not len(q):
        raise ValueError(
            f"failure_rates and accumulation must have the shape (rounds, {len(w)}), "
            f"but they are {q.shape} and {a.shape}"
        )
    rates = np.broadcast_to(np.asarray(learning_rate, dtype=np.float64), (len(q),))
    require(np.all((q >= 0) & (q < 1), axis=0), "failure_rates", "at least 0 and below 1 in every round")
    require(np.all(a > 0, axis=0) & np.isfinite(a).all(), "accumulation", "above 0 in every round")
    steps = rates / (w / ((1 - q) * a)).sum(axis=1)
    return steps, _drifts(rates, a.max(axis=1), smoothness, beta_squared)


def _drifts(learning_rates: Vector, largest: Vector, smoothness: float, beta_squared: float) -> list[float]:
    """Return u of each round, or raise if a learning rate is beyond the reach of the theorems."""
    require_at_least(0, strict=True, smoothness=smoothness)
    limits = largest_drift(beta_squared) / (smoothness * largest)
    for rate, limit in zip(learning_rates.tolist(), limits.tolist(), strict=True):
        require_at_least(0, strict=True, learning_rate=rate)
        if rate > limit:
            raise ValueError(
                f"learning_rate must be at most {limit:.6g} for the bound to hold, but it is {rate:g}: "
                "lower it, or the smoothness, the local work or beta_squared"
            )
    return [float(drift) for drift in learning_rates * smoothness * largest]


def _noise_coefficient(drift: float) -> float:
    return 4 * drift + (2 * drift**2 + 4 * drift**3) / (1 - 2 * drift**2)


def _require_constants(gap: float, beta_squared: float, kappa_squared: float, noise_variance: float) -> None:
    require_at_least(0, gap=gap, kappa_squared=kappa_squared, noise_variance=noise_variance)
    require_at_least(1, beta_squared=beta_squared)


def require_at_least(minimum: float, *, strict: bool = False, **named: float) -> None:
    """Raise a ValueError for a named number that is NaN, infinite or below its minimum (or equal to it, if strict)."""
    for name, value in named.items():
        if not np.isfinite(value) or value < minimum or (strict and value == minimum):
            relation = "above" if strict else "at least"
            raise ValueError(f"{name} must be a finite number {relation} {minimum:g}, but it is {value!r}")
