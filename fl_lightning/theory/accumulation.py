r"""How much gradient a local solver accumulates: A, the sum of the weights of the local gradients in the local update.

The weights are the impulse response of the solver: feed the gradient :math:`e_t` at step t, then
:math:`a_t = -\langle e_t, x_T - x_0 \rangle / \eta`, with the base learning rate :math:`\eta`. ``num_steps`` may be a
number or an array; optimizers behave as in torch and start each round afresh.
"""

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.checks import Vector, require_within, whole_steps


def sgd_accumulation(num_steps: npt.ArrayLike) -> Vector:
    r"""Return :math:`A = T`: plain SGD weighs every gradient with 1.

    >>> sgd_accumulation([1, 7])
    array([1., 7.])
    """
    return whole_steps(num_steps)


def proximal_accumulation(num_steps: npt.ArrayLike, shrinkage: float) -> Vector:
    r"""Return the accumulation of SGD with a proximal term, step :math:`x \leftarrow x - \eta (g + \mu (x - x_0))`.

    .. math:: A = \frac{1 - (1 - \alpha)^T}{\alpha}, \quad \alpha = \eta \mu

    Args:
        num_steps: T.
        shrinkage: alpha, learning rate times proximal strength; between 0 and 1, so that no weight is negative.

    >>> proximal_accumulation([7], 0.01).round(6)
    array([6.793465])
    """
    steps = whole_steps(num_steps)
    require_within("shrinkage", shrinkage, 0, 1)
    if shrinkage == 0:
        return steps
    if shrinkage == 1:
        return np.ones_like(steps)
    # expm1 keeps the digits that 1 - (1 - alpha)^T loses for small alpha.
    return np.asarray(-np.expm1(steps * np.log1p(-shrinkage)) / shrinkage, dtype=np.float64)


def momentum_accumulation(num_steps: npt.ArrayLike, momentum: float) -> Vector:
    r"""Return the accumulation of heavy-ball momentum whose buffer starts empty in each round.

    .. math:: A = \frac{1}{1 - \rho} \left( T - \frac{\rho (1 - \rho^T)}{1 - \rho} \right)

    >>> momentum_accumulation([7], 0.9).round(6)
    array([23.046721])
    """
    steps = whole_steps(num_steps)
    require_within("momentum", momentum, 0, 1, open_end=True)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def nesterov_accumulation(num_steps: npt.ArrayLike, momentum: float) -> Vector:
    r"""Return the accumulation of torch's Nesterov momentum, whose direction is gradient plus momentum times buffer.

    .. math:: A = T + \rho A_\text{momentum}(T)

    >>> nesterov_accumulation([7], 0.9).round(6)
    array([27.742049])
    """
    return whole_steps(num_steps) + momentum * momentum_accumulation(num_steps, momentum)


def dampened_accumulation(
    num_steps: npt.ArrayLike, momentum: float, dampening: float, first_step_dampened: bool = False
) -> Vector:
    r"""Return the accumulation of momentum with dampening.

    .. math:: A = (1 - \delta) A_\text{momentum}(T) + \delta \frac{1 - \rho^T}{1 - \rho}

    The second part is there because torch puts the first gradient into the buffer undampened. Without momentum torch
    keeps no buffer and ignores the dampening: A = T.

    Args:
        num_steps: T.
        momentum: rho.
        dampening: delta.
        first_step_dampened: The buffer starts as zeros and the first gradient is dampened too; torch does not do this.

    >>> dampened_accumulation([7], 0.9, 0.3).round(6), dampened_accumulation([7], 0.9, 0.3, True).round(6)
    (array([17.697814]), array([16.132705]))
    """
    require_within("dampening", dampening, 0, 1)
    accumulated = (1 - dampening) * momentum_accumulation(num_steps, momentum)
    if first_step_dampened:
        return accumulated
    if momentum == 0:
        return whole_steps(num_steps)
    return accumulated + dampening * (1 - momentum ** whole_steps(num_steps)) / (1 - momentum)


def exponential_decay_accumulation(num_steps: npt.ArrayLike, factor: float) -> Vector:
    r"""Return the accumulation of SGD whose learning rate is :math:`\eta \gamma^t` at step t = 0, ..., T-1.

    .. math:: A = \frac{1 - \gamma^T}{1 - \gamma}

    The sum is that of the proximal solver with :math:`\alpha = 1 - \gamma`, in the opposite order of weights.

    >>> exponential_decay_accumulation([7], 0.995).round(6)
    array([6.895871])
    """
    require_within("factor", factor, 0, 1)
    return proximal_accumulation(num_steps, 1 - factor)


def inverse_decay_accumulation(num_steps: npt.ArrayLike, rate: float) -> Vector:
    r"""Return the accumulation of SGD whose learning rate is :math:`\eta / (1 + \delta t)` at step t = 0, ..., T-1.

    .. math:: A = \sum_{t=0}^{T-1} \frac{1}{1 + \delta t}

    >>> inverse_decay_accumulation([7], 0.005).round(6)
    array([6.897221])
    """
    steps = whole_steps(num_steps)
    require_within("rate", rate, 0, np.inf)
    partial_sums = np.cumsum(1 / (1 + rate * np.arange(int(steps.max()))))
    return np.asarray(partial_sums[steps.astype(np.int64) - 1], dtype=np.float64)


def linear_decay_accumulation(num_steps: npt.ArrayLike, rate: float) -> Vector:
    r"""Return the accumulation of SGD whose learning rate is :math:`\eta (1 - \delta t)` at step t = 0, ..., T-1.

    .. math:: A = T - \delta \frac{T (T - 1)}{2}

    >>> linear_decay_accumulation([7], 0.005).round(6)
    array([6.895])
    """
    steps = whole_steps(num_steps)
    require_within("rate", rate, 0, np.inf)
    if rate * (steps.max() - 1) > 1:
        raise ValueError(
            f"a linear decay of {rate:g} makes the learning rate negative within {steps.max():g} steps; "
            f"choose a rate of at most {1 / (steps.max() - 1):g}"
        )
    return steps - rate * steps * (steps - 1) / 2


def gradient_weights(
    num_steps: int,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    schedule: npt.ArrayLike = 1.0,
) -> Vector:
    r"""Return a, the weight of each local gradient in the local update, for momentum under a learning-rate schedule.

    .. math:: a_t = d_t \sum_{j \ge t} s_j \rho^{j - t}, \quad d_1 = 1, \; d_{t > 1} = 1 - \delta

    with the schedule :math:`s_j` as a factor on the base learning rate at step j. Nesterov replaces the sum by
    :math:`s_t + \rho \sum_{j \ge t} s_j \rho^{j - t}` and, as in torch, takes no dampening.

    >>> gradient_weights(3, momentum=0.5)
    array([1.75, 1.5 , 1.  ])
    """
    steps = int(whole_steps(num_steps))
    require_within("momentum", momentum, 0, 1, open_end=True)
    require_within("dampening", dampening, 0, 1)
    if nesterov and dampening:
        raise ValueError(f"Nesterov momentum takes no dampening, but it is {dampening!r}; set it to 0")
    factors = np.broadcast_to(np.asarray(schedule, dtype=np.float64), (steps,))
    lag = np.arange(steps)[None, :] - np.arange(steps)[:, None]
    remembered = np.where(lag >= 0, momentum ** np.maximum(lag, 0), 0.0) @ factors
    if nesterov:
        return np.asarray(factors + momentum * remembered, dtype=np.float64)
    undampened = (np.arange(steps) == 0) | (momentum == 0)
    return np.asarray(remembered * np.where(undampened, 1.0, 1 - dampening), dtype=np.float64)


def proximal_gradient_weights(num_steps: int, shrinkage: float) -> Vector:
    r"""Return :math:`a_t = (1 - \alpha)^{T - t}`, the weights behind :func:`proximal_accumulation`.

    >>> proximal_gradient_weights(3, 0.5)
    array([0.25, 0.5 , 1.  ])
    """
    require_within("shrinkage", shrinkage, 0, 1)
    return np.asarray((1 - shrinkage) ** np.arange(int(whole_steps(num_steps)) - 1, -1, -1), dtype=np.float64)
