"""Which objective a federation optimises: contribution, Omega, chi-square, step length, and the gain on a toy."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector, columns, require, require_rates

LocalStep: TypeAlias = Callable[[float, float, float, int], tuple[float, float]]
"""Takes displacement since the start, buffer, gradient and step number from 0; returns displacement and buffer."""


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


def sgd_step(
    learning_rate: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    proximal: float = 0.0,
    decay: float = 1.0,
) -> LocalStep:
    """Return one step of torch's SGD with a proximal term in the loss and an exponentially decaying learning rate.

    >>> step = sgd_step(0.1, momentum=0.5)
    >>> step(0.0, 0.0, -1.0, 0)
    (0.1, -1.0)
    """

    def step(displacement: float, buffer: float, gradient: float, index: int) -> tuple[float, float]:
        gradient = gradient + proximal * displacement
        undampened = index == 0 or momentum == 0
        buffer = gradient if undampened else momentum * buffer + (1 - dampening) * gradient
        direction = gradient + momentum * buffer if nesterov else buffer
        return displacement - learning_rate * decay**index * direction, buffer

    return step


def toy_gain(num_steps: npt.ArrayLike, step: LocalStep) -> Vector:
    r"""Return B, the share of the way to its own optimum that a client goes in T local steps.

    .. math:: x_T - x_0 = B (e - x_0), \quad B_\text{SGD} = 1 - (1 - \eta)^T

    On losses :math:`\tfrac12 \lVert x - e_m \rVert^2` this is exact for any linear solver. B takes the place of
    :math:`\eta A`, which is its limit for small learning rates.

    >>> toy_gain([1, 2], sgd_step(0.1)).round(6)
    array([0.1 , 0.19])
    """
    steps = np.asarray(num_steps, dtype=np.float64)
    wrong = ~(np.isfinite(steps) & (steps >= 1) & (steps == np.floor(steps)))
    if wrong.any():
        raise ValueError(f"num_steps must be whole numbers of at least 1, but got {steps[wrong].flat[0]!r}")
    displacements = [0.0]
    buffer = 0.0
    for index in range(int(steps.max())):
        displacement, buffer = step(displacements[-1], buffer, displacements[-1] - 1.0, index)
        displacements.append(displacement)
    return np.asarray(np.array(displacements)[steps.astype(np.int64)], dtype=np.float64)
