r"""How much gradient local solvers accumulate, in closed form: A, the sum of the gradients' weights in the update.

The weights are the impulse response of the solver: feed the gradient :math:`e_t` at step t, then
:math:`a_t = -\langle e_t, x_T - x_0 \rangle / \eta`, with the base learning rate :math:`\eta`. T may be a number or an
array; optimizers behave as in torch and start each round afresh.
"""

import numpy as np


def sgd(steps):
    """A = T: plain SGD weighs every gradient with 1."""
    return np.asarray(steps, dtype=np.float64)


def proximal(steps, shrinkage):
    r"""SGD with a proximal term, :math:`A = (1 - (1 - \alpha)^T) / \alpha` with the shrinkage alpha = eta mu in [0, 1].

    >>> proximal([7], 0.01).round(6)
    array([6.793465])
    """
    if shrinkage in (0, 1):
        return sgd(steps) ** (1 - shrinkage)
    # expm1 keeps the digits that 1 - (1 - alpha)^T loses for small alpha.
    return -np.expm1(sgd(steps) * np.log1p(-shrinkage)) / shrinkage


def momentum(steps, rho):
    r"""Heavy-ball momentum whose buffer starts empty, :math:`A = (T - \rho (1 - \rho^T) / (1 - \rho)) / (1 - \rho)`.

    >>> momentum([7], 0.9).round(6)
    array([23.046721])
    """
    return (sgd(steps) - rho * (1 - rho ** sgd(steps)) / (1 - rho)) / (1 - rho)


def nesterov(steps, rho):
    """Torch's Nesterov momentum, whose direction is gradient plus momentum times buffer.

    >>> nesterov([7], 0.9).round(6)
    array([27.742049])
    """
    return sgd(steps) + rho * momentum(steps, rho)


def dampened(steps, rho, dampening, first_step_dampened=False):
    r"""Momentum with dampening, :math:`A = (1 - \delta) A_\text{momentum} + \delta (1 - \rho^T) / (1 - \rho)`.

    The second part is there because torch puts the first gradient into the buffer undampened. Without momentum torch
    keeps no buffer and ignores the dampening: A = T.

    >>> dampened([7], 0.9, 0.3).round(6), dampened([7], 0.9, 0.3, True).round(6)
    (array([17.697814]), array([16.132705]))
    """
    accumulated = (1 - dampening) * momentum(steps, rho)
    if first_step_dampened:
        return accumulated
    return accumulated + dampening * (1 - rho ** sgd(steps)) / (1 - rho) if rho else sgd(steps)


def exponential_decay(steps, factor):
    r"""SGD with the learning rate :math:`\eta \gamma^t`: as the proximal solver, in the opposite order of weights.

    >>> exponential_decay([7], 0.995).round(6)
    array([6.895871])
    """
    return proximal(steps, 1 - factor)


def inverse_decay(steps, rate):
    r"""SGD with the learning rate :math:`\eta / (1 + \delta t)`.

    >>> inverse_decay([7], 0.005).round(6)
    array([6.897221])
    """
    return np.cumsum(1 / (1 + rate * np.arange(np.max(steps))))[np.asarray(steps) - 1]


def linear_decay(steps, rate):
    r"""SGD with the learning rate :math:`\eta (1 - \delta t)`, :math:`A = T - \delta T (T - 1) / 2`.

    >>> linear_decay([7], 0.005).round(6)
    array([6.895])
    """
    return sgd(steps) - rate * sgd(steps) * (sgd(steps) - 1) / 2


def gradient_weights(steps, momentum=0.0, dampening=0.0, nesterov=False, schedule=1.0):
    r"""The weight of each gradient for momentum under a schedule s of factors on the learning rate.

    .. math:: a_t = d_t \sum_{j \ge t} s_j \rho^{j - t}, \quad d_1 = 1, \; d_{t > 1} = 1 - \delta

    Nesterov replaces the sum by :math:`s_t + \rho \sum_{j \ge t} s_j \rho^{j - t}`.

    >>> gradient_weights(3, 0.5)
    array([1.75, 1.5 , 1.  ])
    """
    factors = np.broadcast_to(np.asarray(schedule, dtype=np.float64), (steps,))
    lag = np.arange(steps)[None, :] - np.arange(steps)[:, None]
    remembered = np.where(lag >= 0, momentum ** np.maximum(lag, 0), 0.0) @ factors
    if nesterov:
        return factors + momentum * remembered
    undampened = (np.arange(steps) == 0) | (momentum == 0)
    return remembered * np.where(undampened, 1.0, 1 - dampening)


def proximal_gradient_weights(steps, shrinkage):
    r"""The weights :math:`a_t = (1 - \alpha)^{T - t}` behind :func:`proximal`.

    >>> proximal_gradient_weights(3, 0.5)
    array([0.25, 0.5 , 1.  ])
    """
    return (1 - shrinkage) ** np.arange(steps - 1, -1, -1)
