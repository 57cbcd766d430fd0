r"""Where the quadratic toy ends: losses :math:`\tfrac12 \lVert x - e_m \rVert^2` and any linear local solver.

On a quadratic the local update is exactly proportional to the distance from the client's optimum,
:math:`x_T - x_0 = B (e_m - x_0)`. The gain B takes the place of :math:`\eta A`, which is its limit for small
learning rates, and makes the prediction exact for all of them.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.bias import contribution, effective_weights
from fl_lightning.theory.checks import Vector, columns, whole_steps

LocalStep: TypeAlias = Callable[[float, float, float, int], tuple[float, float]]
"""Takes displacement since the start, buffer, gradient and step number from 0; returns displacement and buffer."""


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

    >>> toy_gain([1, 2], sgd_step(0.1)).round(6)
    array([0.1 , 0.19])
    """
    return _response(num_steps, step, curvature=1.0)


def probe_accumulation(num_steps: npt.ArrayLike, step: LocalStep, learning_rate: float) -> Vector:
    """Return A of a linear solver by the unit-gradient probe: how far a constant gradient of 1 carries it.

    >>> probe_accumulation([7], sgd_step(0.01, momentum=0.9), 0.01).round(6)
    array([23.046721])
    """
    return _response(num_steps, step, curvature=0.0) / learning_rate


def convergence_point(
    optima: npt.ArrayLike,
    probabilities: npt.ArrayLike,
    failure_rates: npt.ArrayLike,
    coefficients: npt.ArrayLike,
    gains: npt.ArrayLike,
) -> Vector:
    r"""Return the point to which the mean of the global model converges on the toy.

    .. math:: \tilde x^\star = \frac{\sum_m p_m (1 - q_m) c_m B_m e_m}{\sum_m p_m (1 - q_m) c_m B_m}

    Args:
        optima: e, the optimum of each client, (M, d).
        probabilities: p, (M,).
        failure_rates: q, (M,).
        coefficients: c, (M,).
        gains: B of :func:`toy_gain`, (M,).

    >>> convergence_point([[0.0], [1.0]], [0.5, 0.5], [0.0, 0.5], 1.0, toy_gain([1, 6], sgd_step(1e-9))).round(6)
    array([0.75])
    """
    omega = effective_weights(contribution(probabilities, failure_rates, coefficients, gains))
    return np.asarray(omega @ _points(optima, len(omega)), dtype=np.float64)


def predicted_bias_distance(optima: npt.ArrayLike, weights: npt.ArrayLike, effective: npt.ArrayLike) -> float:
    r"""Return the distance between the point of convergence and the optimum of the target objective.

    .. math:: \Big\lVert \sum_m (\Omega_m - w_m) e_m \Big\rVert

    Args:
        optima: e, (M, d).
        weights: w, (M,).
        effective: Omega with the gain B in the place of the accumulation, (M,).

    >>> predicted_bias_distance([[0.0], [1.0]], [0.5, 0.5], [0.25, 0.75])
    0.25
    """
    w, omega = columns(weights=weights, effective=effective)
    return float(np.linalg.norm((omega - w) @ _points(optima, len(w))))


def _response(num_steps: npt.ArrayLike, step: LocalStep, curvature: float) -> Vector:
    """Displacement after T steps towards an optimum one unit away (or under a constant pull, without curvature)."""
    steps = whole_steps(num_steps).astype(np.int64)
    displacements, displacement, buffer = [0.0], 0.0, 0.0
    for index in range(int(steps.max())):
        displacement, buffer = step(displacement, buffer, curvature * displacement - 1.0, index)
        displacements.append(displacement)
    return np.asarray(np.array(displacements)[steps], dtype=np.float64)


def _points(optima: npt.ArrayLike, num_clients: int) -> Vector:
    points = np.asarray(optima, dtype=np.float64)
    if points.ndim != 2 or len(points) != num_clients:
        raise ValueError(f"optima must have the shape ({num_clients}, d), a row per client, but it is {points.shape}")
    return points
