"""Equations of the paper that the product does not compute, as the tests compare them with what it does."""

import numpy as np

from fl_lightning import theory


def effective_learning_rate(rate, p, q, c=1.0):
    r"""The learning rate that is left after lost uploads, :math:`\eta \sum_m p_m (1 - q_m) c_m`.

    >>> round(effective_learning_rate(0.1, [0.5, 0.5], [0.0, 0.5]), 6)
    0.075
    """
    return rate * theory.step_length(theory.contribution(p, q, c, 1.0))


def effective_steps(p, q, c, a):
    r"""The number of local steps that all clients appear to take in common, the mean of A with weights p (1 - q) c.

    >>> effective_steps([0.5, 0.5], [0.0, 0.5], [1.0, 1.0], [2, 8])
    4.0
    """
    return float(theory.effective_weights(theory.contribution(p, q, c, 1.0)) @ np.asarray(a))


def expected_work(p, steps):
    """The expected number of local steps of one draw, lost or not."""
    return float(np.asarray(p) @ np.asarray(steps))


def exponential_average_factor(decay, contraction):
    r"""The variance of an exponential average relative to that of the model itself.

    .. math:: \frac{1 - \beta}{1 + \beta} \cdot \frac{1 + \beta \rho}{1 - \beta \rho}

    >>> round(exponential_average_factor(0.95, 0.0), 4), exponential_average_factor(0.0, 0.5)
    (0.0256, 1.0)
    """
    return (1 - decay) / (1 + decay) * (1 + decay * contraction) / (1 - decay * contraction)


def mean_factor(n, rho):
    r"""The variance of the mean of the last n models relative to that of one of them.

    .. math:: \frac1n \Bigl[ \frac{1 + \rho}{1 - \rho} - \frac{2 \rho (1 - \rho^n)}{n (1 - \rho)^2} \Bigr]

    >>> mean_factor(4, 0.0), round(mean_factor(1, 0.9), 9)
    (0.25, 1.0)
    """
    return ((1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)) / n


def probe_accumulation(steps, step, learning_rate):
    """A of a linear solver by the unit-gradient probe: how far a constant gradient of 1 carries it.

    >>> probe_accumulation([7], theory.sgd_step(0.01, momentum=0.9), 0.01).round(6)
    array([23.046721])
    """
    moved = [(0.0, 0.0)]
    for index in range(np.max(steps)):
        moved.append(step(*moved[-1], -1.0, index))
    return np.array([displacement for displacement, _ in moved])[np.asarray(steps)] / learning_rate


def convergence_point(optima, p, q, c, gains):
    r"""The point to which the mean of the global model converges on the toy: the mean of the optima with Omega.

    >>> gains = theory.toy_gain([1, 6], theory.sgd_step(1e-9))
    >>> convergence_point(np.array([[0.0], [1.0]]), [0.5, 0.5], [0.0, 0.5], 1.0, gains).round(6)
    array([0.75])
    """
    return theory.effective_weights(theory.contribution(p, q, c, gains)) @ optima


def predicted_bias_distance(optima, weights, effective):
    r"""The distance of the point of convergence, :math:`\lVert \sum_m (\Omega_m - w_m) e_m \rVert`."""
    return float(np.linalg.norm((effective - weights) @ optima))
