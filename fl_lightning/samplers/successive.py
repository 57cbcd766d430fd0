"""Distinct clients, drawn one after another by p."""

import numpy as np
from typing_extensions import override

from fl_lightning import theory
from fl_lightning.samplers.sampler import Drawing, nearest_counts
from fl_lightning.types import IntVector, Vector


class Successive(Drawing):
    r"""K distinct clients, one after another by p among those that are left, as numpy's ``choice(replace=False, p=p)``.

    .. math:: P(m_1, \dots, m_K) = \prod_k \frac{p_{m_k}}{1 - \sum_{j < k} p_{m_j}}

    It does not keep E[n] = K p: inclusion is flatter, see :func:`fl_lightning.theory.successive_inclusion`. Omega, step
    length, variance and privacy are those of the inclusion; FedACS, whose p is made for E[n] = K p, does not optimise w
    with it, while samplers that reweight do.

    >>> n = Successive()(np.array([0.6, 0.3, 0.1, 0.0]), 3, np.random.default_rng(0))
    >>> n.tolist(), Successive().shares(np.array([0.6, 0.3, 0.1]), 2).round(3).tolist()
    ([1, 1, 1, 0], [0.462, 0.392, 0.146])
    """

    keeps_shares = False

    @override
    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        counts = np.zeros(len(probabilities), dtype=np.int64)
        counts[rng.choice(len(probabilities), num_draws, replace=False, p=probabilities)] = 1
        return counts

    @override
    def shares(self, probabilities: Vector, num_draws: int) -> Vector:
        """Return the inclusion probabilities over K."""
        return theory.successive_inclusion(probabilities, num_draws) / num_draws

    @override
    def distribution(self, shares: Vector, num_draws: int) -> Vector:
        """Return P(n = k) of n in {0, 1}, (M, 2)."""
        return nearest_counts(np.minimum(num_draws * shares, 1.0))
