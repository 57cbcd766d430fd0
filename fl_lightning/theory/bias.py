"""Which objective a federation really optimises: contribution, Omega, chi-square and step length."""

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector, columns, require, require_rates


def contribution(
    probabilities: npt.ArrayLike, failure_rates: npt.ArrayLike, coefficients: npt.ArrayLike, accumulation: npt.ArrayLike
) -> Vector:
    r"""Return the expected amount of each client's mean gradient in one step of the global model.

    .. math:: p_m (1 - q_m) c_m A_m

    Args:
        probabilities: p, expected share of the draws of each client, (M,).
        failure_rates: q, probability that an upload is lost, (M,).
        coefficients: c, factor that sampler and aggregator put on a delivered update, (M,).
        accumulation: A, the sum of the weights with which local gradients enter the update, (M,).

    >>> contribution([0.5, 0.5], [0.0, 0.5], [1.0, 1.0], [2, 8])
    array([1., 2.])
    """
    p, q, c, a = columns(
        probabilities=probabilities, failure_rates=failure_rates, coefficients=coefficients, accumulation=accumulation
    )
    require(p >= 0, "probabilities", "at least 0")
    require_rates(q, certain=True)
    return p * (1 - q) * c * a


def effective_weights(contribution: npt.ArrayLike) -> Vector:
    r"""Return Omega, the weights of the objective that is really optimised.

    .. math:: \Omega_m = \frac{p_m (1 - q_m) c_m A_m}{\sum_j p_j (1 - q_j) c_j A_j}

    >>> effective_weights([1.0, 3.0])
    array([0.25, 0.75])
    """
    (amounts,) = columns(contribution=contribution)
    total = float(amounts.sum())
    if not total > 0:
        raise ValueError(
            f"the contributions must have a positive sum, but it is {total:g}: nothing is optimised; "
            "give at least one client a positive probability, delivery rate, coefficient and accumulation"
        )
    return amounts / total


def chi_square(weights: npt.ArrayLike, effective: npt.ArrayLike) -> float:
    r"""Return the distance of the effective weights from the target weights; 0 means consistent.

    .. math:: \chi^2_{w \Vert \Omega} = \sum_m \frac{(w_m - \Omega_m)^2}{\Omega_m}

    The argument order is that of the proof of Theorem 2. A client that is wanted but never contributes makes it
    infinite; one that is neither wanted nor contributes adds nothing.

    >>> chi_square([0.5, 0.5], [0.5, 0.5]), round(chi_square([0.5, 0.5], [0.2, 0.8]), 4), chi_square([0.5, 0.5], [0, 1])
    (0.0, 0.5625, inf)
    """
    w, omega = columns(weights=weights, effective=effective)
    if omega.min() <= 0:
        if ((omega <= 0) & (w != omega)).any():
            return float("inf")
        counted = omega > 0
        w, omega = w[counted], omega[counted]
    return float(np.sum((w - omega) ** 2 / omega))


def step_length(contribution: npt.ArrayLike) -> float:
    r"""Return the expected length of a global step in units of learning rate times mean gradient.

    .. math:: \sum_m p_m (1 - q_m) c_m A_m = \eta_\mathrm{eff} T_\mathrm{eff} / \eta

    >>> step_length([1.0, 3.0])
    4.0
    """
    (amounts,) = columns(contribution=contribution)
    return float(amounts.sum())
