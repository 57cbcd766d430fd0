"""How K draws are made from the probabilities p. Every way keeps E[n] = K p; they differ in the variance of n."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np

from fl_lightning.parts.checking import one_of
from fl_lightning.types import IntVector, Vector

Order = Literal["random", "fixed"]


class Drawing(ABC):
    """Turns probabilities into how often each client is drawn."""

    independent: bool = False  # whether the counts of different clients are independent of each other

    @abstractmethod
    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return n, (M,), with E[n] = ``num_draws * probabilities``."""

    def distribution(self, probabilities: Vector, num_draws: int) -> Vector | None:
        """Return P(n_m = k), (M, largest k + 1), which privacy accounting needs; None where it is not known."""
        return None


def _counts_at_quantiles(probabilities: Vector, quantiles: Vector) -> IntVector:
    cumulated = np.cumsum(probabilities)
    drawn = np.searchsorted(cumulated, quantiles * cumulated[-1], side="right")
    if drawn.max(initial=0) == len(probabilities):  # a quantile within rounding of 1 fell off the end
        drawn = np.minimum(drawn, np.flatnonzero(probabilities)[-1])
    return np.bincount(drawn, minlength=len(probabilities)).astype(np.int64, copy=False)


def _nearest_counts(expected: Vector) -> Vector:
    """Return P(n = k) of the n of least variance around its expectation, (M, largest k + 1).

    >>> _nearest_counts(np.array([0.25, 1.5])).tolist()
    [[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]]
    """
    whole = np.floor(expected).astype(np.int64)
    fraction, rows = expected - whole, np.arange(len(expected))
    table = np.zeros((len(expected), int(np.ceil(expected).max(initial=0)) + 1))
    table[rows, whole] = 1 - fraction
    above = fraction > 0
    table[rows[above], whole[above] + 1] = fraction[above]
    return table


class WithReplacement(Drawing):
    """K independent draws, as in the paper.

    >>> n = WithReplacement()(np.array([0.5, 0.0, 0.5]), 10, np.random.default_rng(0))
    >>> int(n.sum()), int(n[1])
    (10, 0)
    """

    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return multinomial counts."""
        return _counts_at_quantiles(probabilities, rng.random(num_draws))

    def distribution(self, probabilities: Vector, num_draws: int) -> Vector:
        """Return the binomial probabilities of n, (M, K + 1)."""
        from scipy.stats import binom  # imported here: it takes long, and few runs need it

        return np.asarray(binom.pmf(np.arange(num_draws + 1), num_draws, probabilities[:, None]))


class Systematic(Drawing):
    """One uniform u, draws at the quantiles (u + k)/K: |n - K p| < 1, the least variance of the counts.

    The order of the clients decides who excludes whom. ``order="random"`` takes a fresh one each round.
    ``order="fixed"`` keeps the clients' numbers and so stratifies by whatever the numbering carries (classes, for
    example): it can help much, but it uses knowledge that a server may not have.

    >>> Systematic(order="fixed")(np.array([0.25, 0.25, 0.5]), 4, np.random.default_rng(0)).tolist()
    [1, 1, 2]
    """

    def __init__(self, order: Order = "random") -> None:
        one_of("order", order, Order)
        self.order = order

    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return counts that differ from K p by less than 1."""
        quantiles = (rng.random() + np.arange(num_draws)) / num_draws
        if self.order == "fixed":
            return _counts_at_quantiles(probabilities, quantiles)
        order = rng.permutation(len(probabilities))
        counts = np.empty(len(probabilities), dtype=np.int64)
        counts[order] = _counts_at_quantiles(probabilities[order], quantiles)
        return counts

    def distribution(self, probabilities: Vector, num_draws: int) -> Vector:
        """Return P(n = k): n is one of the two whole numbers around K p, (M, largest k + 1)."""
        return _nearest_counts(num_draws * probabilities)


class WithoutReplacement(Drawing):
    """K distinct clients; client m is among them with probability K p_m, which must not exceed 1.

    >>> n = WithoutReplacement()(np.full(5, 0.2), 3, np.random.default_rng(0))
    >>> int(n.sum()), int(n.max())
    (3, 1)
    """

    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return counts of 0 and 1."""
        too_likely = np.flatnonzero(num_draws * probabilities > 1 + 1e-9)
        if len(too_likely):
            client = int(too_likely[0])
            raise ValueError(
                f"client {client} has K p = {num_draws * probabilities[client]:.3f}, but a client that is drawn at "
                f"most once needs K p <= 1 ({len(too_likely)} such clients): draw fewer clients or use Systematic"
            )
        if np.ptp(probabilities) == 0:
            counts = np.zeros(len(probabilities), dtype=np.int64)
            counts[rng.choice(len(probabilities), num_draws, replace=False)] = 1
            return counts
        return np.minimum(Systematic()(probabilities, num_draws, rng), 1)

    def distribution(self, probabilities: Vector, num_draws: int) -> Vector:
        """Return P(n = k) of n in {0, 1}, (M, 2)."""
        return _nearest_counts(np.minimum(num_draws * probabilities, 1.0))


class Independent(Drawing):
    """Each client decides alone, with probability K p_m: the cohort has K clients only on average (Poisson sampling).

    Where K p_m is above 1, its whole part is certain and the rest is left to chance.

    >>> int(Independent()(np.array([0.5, 0.5]), 2, np.random.default_rng(0)).sum())
    2
    """

    independent = True

    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return counts, 0 or 1 where K p <= 1."""
        expected = num_draws * probabilities
        certain = np.floor(expected)
        return (certain + (rng.random(len(probabilities)) < expected - certain)).astype(np.int64)

    def distribution(self, probabilities: Vector, num_draws: int) -> Vector:
        """Return P(n = k): n is one of the two whole numbers around K p, (M, largest k + 1)."""
        return _nearest_counts(num_draws * probabilities)


class Certain(Drawing):
    """No chance at all: the sampler has decided who takes part, and K p are whole numbers.

    >>> Certain()(np.array([0.5, 0.0, 0.5]), 2, np.random.default_rng(0)).tolist()
    [1, 0, 1]
    """

    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return K p."""
        return np.rint(num_draws * probabilities).astype(np.int64)
