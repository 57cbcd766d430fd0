r"""How far a client goes on the quadratic toy: losses :math:`\tfrac12 \lVert x - e_m \rVert^2`, any linear solver.

On a quadratic the local update is exactly proportional to the distance from the client's optimum,
:math:`x_T - x_0 = B (e_m - x_0)`. The gain B takes the place of :math:`\eta A`, which is its limit for small
learning rates, and makes the prediction exact for all of them.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector

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
