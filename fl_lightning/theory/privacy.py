r"""What a round reveals about one client, as a distribution of privacy losses: pure functions, all clients at once.

Two federations are neighbours if one client adds nothing to any sum in the second one and all else is the same: who
the clients are, their weights, work and links, and the draws ("zero-out"). A client that was drawn n times moves the
sum by at most n times its sensitivity, and Gaussian noise of a given size hides that; ``ratios`` are sensitivity over
the standard deviation of the noise. With P and Q what is seen with and without the client, the mechanism is private
at :math:`(\epsilon, \delta)` if

.. math:: \delta \ge \int (P - e^\epsilon Q)_+ \quad \mathrm{and} \quad \delta \ge \int (Q - e^\epsilon P)_+

Losses, :math:`\log P / Q` under P, of several rounds add up, so that their distributions are convolved.
"""

import numpy as np

from fl_lightning.theory.checks import Vector


def gaussian_deltas(epsilons: Vector, ratios: Vector) -> Vector:
    r"""Return the delta at each epsilon of noise on a sum that a client is known to be in.

    .. math:: \delta_x(\epsilon) = \Phi(x/2 - \epsilon/x) - e^\epsilon\, \Phi(-x/2 - \epsilon/x)

    with x the ratio (Balle and Wang 2018). The two directions are alike.

    >>> gaussian_deltas(np.array([0.0, 1.0]), np.array([1.0])).round(4).tolist()
    [0.3829, 0.1269]
    """
    from scipy.special import log_ndtr, ndtr  # imported here: it takes long

    ratios = np.maximum(ratios, 1e-12)
    with np.errstate(over="ignore", invalid="ignore"):
        below, above = epsilons / ratios - ratios / 2, epsilons / ratios + ratios / 2
        deltas = ndtr(-below) - np.exp(epsilons + log_ndtr(-above))
    return np.asarray(np.clip(np.nan_to_num(deltas), -np.expm1(np.minimum(epsilons, 0.0)), 1.0))


def secret_deltas(epsilons: Vector, rates: Vector, ratios: Vector) -> Vector:
    r"""Return delta of a round that each client joins by itself, and nobody knows who did, (2, n, epsilons).

    .. math:: P = (1-r) \mathcal{N}(0, 1) + r \mathcal{N}(x, 1), \quad Q = \mathcal{N}(0, 1)\!: \qquad
        \delta(\epsilon) = r\, \delta_x(\log(1 + (e^\epsilon - 1) / r))

    with r the rate and x the ratio; and, for the other direction, where Q stands for P and P for Q,
    :math:`(1 - (1-r) e^\epsilon)\, \delta_x(-\log(1 + (e^{-\epsilon} - 1) / r))`. Each client has a rate of its own:
    nothing is assumed about the others.

    >>> secret_deltas(np.array([0.0, 1.0]), np.array([1.0, 0.1]), np.array([1.0, 1.0]))[0].round(4).tolist()
    [[0.3829, 0.1269], [0.0383, 0.0002]]
    """
    r, x = np.maximum(rates, 1e-300)[:, None], ratios[:, None]
    with np.errstate(over="ignore", divide="ignore"):
        amplified = np.log1p(np.maximum(np.expm1(epsilons) / r, -1.0))
        amplified = np.where(epsilons > 600, epsilons - np.log(r), amplified)  # where the line above is infinite
        reverse = np.log1p(np.maximum(np.expm1(-epsilons) / r, -1.0))
        share = np.maximum(-np.expm1(epsilons + np.log1p(-r)), 0.0)
    both = np.stack([r * gaussian_deltas(amplified, x), share * gaussian_deltas(-reverse, x)])
    return np.clip(both, -np.expm1(np.minimum(epsilons, 0.0)), 1.0)


def shown_deltas(epsilons: Vector, counts: Vector, ratios: Vector, fixed: Vector | float = 0.0) -> Vector:
    r"""Return delta of a round whose draws may be known to everybody, (n, epsilons); the two directions are alike.

    .. math:: \delta(\epsilon) = \sum_n \mathrm{P}(n)\, \delta_{n x}(\epsilon)

    This holds for all ways of drawing, however the draws of different clients depend on each other, because it is the
    delta of the pair (draws, noisy sum), whose draws have the same probabilities with and without the client. There is
    no amplification by secrecy in it; a client is safe in a round in which it is not drawn.

    Args:
        epsilons: Where.
        counts: P(n = k) of each client, (n, largest k + 1).
        ratios: x, sensitivity of one draw over the standard deviation, (n,).
        fixed: Squared ratio of what a client reveals besides, once, if it is drawn at all.

    >>> shown_deltas(np.array([0.0, 1.0]), np.array([[0.9, 0.1]]), np.array([1.0])).round(4).tolist()
    [[0.0383, 0.0127]]
    """
    deltas = counts[:, :1] * -np.expm1(np.minimum(epsilons, 0.0))
    for k in range(1, counts.shape[1]):
        sizes = np.sqrt((k * ratios) ** 2 + fixed)[:, None]
        deltas = deltas + counts[:, k, None] * gaussian_deltas(epsilons, sizes)
    return np.asarray(deltas)


def loss_masses(deltas: Vector, spacing: float) -> tuple[Vector, Vector]:
    r"""Return the masses of privacy losses on a grid, (2, ..., 2 n), and of an infinite loss, (2, ...).

    Their delta is that of the mechanism at all points of the grid and above it between them, where it is the chord of
    a convex function of :math:`e^\epsilon` (Doroshenko et al. 2022): the least upper bound there is on a grid. A loss
    l of P has :math:`e^l` times the mass that the loss -l has of Q. The losses are 0, 1, ..., n - 1, -n, ..., -1 times
    the spacing, as Fourier transforms want them.

    Args:
        deltas: Of the mechanism at 0, 1, ..., n times the spacing, in both directions, (2, ..., n + 1).
        spacing: Of the grid.

    >>> masses, infinite = loss_masses(secret_deltas(np.arange(3.0), np.ones(1), np.ones(1)), 1.0)
    >>> masses[0, 0].round(3).tolist(), infinite[0].round(3).tolist()
    ([0.342, 0.343, 0.0, 0.126], [0.189])
    """
    falls = -np.diff(deltas, axis=-1)
    with np.errstate(over="ignore"):
        above = falls[..., :-1] / -np.expm1(-spacing) - falls[..., 1:] / np.expm1(spacing)
    above = np.maximum(above, 0.0)
    masses = np.zeros((*deltas.shape[:-1], 2 * falls.shape[-1]))
    masses[..., 1 : falls.shape[-1]] = above
    masses[..., falls.shape[-1] + 1 :] = (above * np.exp(-spacing * np.arange(1, falls.shape[-1])))[::-1, ..., ::-1]
    infinite = deltas[..., -1] + falls[..., -1] / -np.expm1(-spacing)  # the last point of the grid counts as infinite
    masses[..., 0] = np.maximum(1 - infinite - masses.sum(axis=-1), 0.0)
    return masses, infinite


def epsilon_of(masses: Vector, infinite: Vector, losses: Vector, delta: float) -> Vector:
    r"""Return the least epsilon at delta of distributions of privacy losses, (...).

    .. math:: \delta = \mathrm{P}(L = \infty) + \sum_{l > \epsilon} \mathrm{P}(L = l)\, (1 - e^{\epsilon - l})

    Args:
        masses: Of the losses, (..., n).
        infinite: Of an infinite loss, (...).
        losses: A grid from 0 on, (n,).
        delta: Of the guarantee.

    >>> masses = np.array([0.5, 0.0, 0.5])
    >>> epsilon_of(masses, np.zeros(()), np.array([0.0, 1.0, 2.0]), 0.25).round(4).tolist()
    1.3069
    """
    above = masses[..., ::-1].cumsum(axis=-1)[..., ::-1] + infinite[..., None]
    with np.errstate(divide="ignore"):
        logs = np.logaddexp.accumulate((np.log(masses) - losses)[..., ::-1], axis=-1)[..., ::-1]
    without = np.exp(logs + losses)  # sum of e^(l_j - l_i) P(l_i) over i >= j
    enough = above - without <= delta
    place = enough.argmax(axis=-1)[..., None]  # of the first point that is high enough
    more, less = (np.take_along_axis(each, place, axis=-1)[..., 0] for each in (above, without))
    place = place[..., 0]
    with np.errstate(divide="ignore"):
        found = losses[place] + np.log(np.maximum(more - delta, 0.0) / less)
    found = np.where(place == 0, 0.0, np.maximum(found, losses[place - 1]))
    return np.asarray(np.where(enough.any(axis=-1), found, np.inf))
