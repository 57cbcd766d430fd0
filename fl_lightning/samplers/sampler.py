"""What a sampler is: one method that returns p; how K draws are made from it; samplers by the target weights alone."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from typing_extensions import override

from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.parts.traits import SamplerTraits, check_declared
from fl_lightning.theory.checks import one_of
from fl_lightning.types import BoolVector, IntVector, Profiles, RoundResult, Vector

Order = Literal["random", "fixed"]
_PLAIN = SamplerTraits()


class Drawing(ABC):
    """Turns probabilities into how often each client is drawn; most ways keep E[n] = K p, with another variance."""

    independent: bool = False  # whether the counts of different clients are independent of each other
    keeps_shares: bool = True  # whether E[n] = K p for every p

    @abstractmethod
    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return n, (M,), with E[n] = ``num_draws * shares(probabilities, num_draws)``."""

    def shares(self, probabilities: Vector, num_draws: int) -> Vector:
        """Return E[n] / K, the expected share of each client among the draws, (M,)."""
        return probabilities

    def distribution(self, shares: Vector, num_draws: int) -> Vector | None:
        """Return P(n_m = k), (M, largest k + 1), which privacy accounting needs; None where it is not known."""
        return None


def _counts_at_quantiles(probabilities: Vector, quantiles: Vector) -> IntVector:
    cumulated = np.cumsum(probabilities)
    drawn = np.searchsorted(cumulated, quantiles * cumulated[-1], side="right")
    if drawn.max(initial=0) == len(probabilities):  # a quantile within rounding of 1 fell off the end
        drawn = np.minimum(drawn, np.flatnonzero(probabilities)[-1])
    return np.bincount(drawn, minlength=len(probabilities)).astype(np.int64, copy=False)


def nearest_counts(expected: Vector) -> Vector:
    """Return P(n = k) of the n of least variance around its expectation, (M, largest k + 1).

    >>> nearest_counts(np.array([0.25, 1.5])).tolist()
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

    def distribution(self, shares: Vector, num_draws: int) -> Vector:
        """Return the binomial probabilities of n, (M, K + 1)."""
        from scipy.stats import binom  # imported here: it takes long, and few runs need it

        return np.asarray(binom.pmf(np.arange(num_draws + 1), num_draws, shares[:, None]))


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

    def distribution(self, shares: Vector, num_draws: int) -> Vector:
        """Return P(n = k): n is one of the two whole numbers around K p, (M, largest k + 1)."""
        return nearest_counts(num_draws * shares)


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

    def distribution(self, shares: Vector, num_draws: int) -> Vector:
        """Return P(n = k) of n in {0, 1}, (M, 2)."""
        return nearest_counts(np.minimum(num_draws * shares, 1.0))


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

    def distribution(self, shares: Vector, num_draws: int) -> Vector:
        """Return P(n = k): n is one of the two whole numbers around K p, (M, largest k + 1)."""
        return nearest_counts(num_draws * shares)


class Certain(Drawing):
    """No chance at all: the sampler has decided who takes part, and K p are whole numbers.

    >>> Certain()(np.array([0.5, 0.0, 0.5]), 2, np.random.default_rng(0)).tolist()
    [1, 0, 1]
    """

    def __call__(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return K p."""
        return np.rint(num_draws * probabilities).astype(np.int64)


_SYSTEMATIC = Systematic()


class Sampler(Remembers):
    """Decides with which probability each client is drawn.

    Override :meth:`probabilities`; the rest is for samplers that reweight, draw in their own way, or learn. One that
    learns names in ``memory`` the attributes that a resumed run needs. One that asks clients or learns declares it:
    ``traits = SamplerTraits(learns=True, looks_at_updates=True)``.
    """

    run_length: int | None = None  # R, once a run has begun

    @override
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        example = "traits = SamplerTraits(learns=True, looks_at_updates=True)"
        check_declared(cls, ("prepare", "observe"), example)

    @property
    def traits(self) -> SamplerTraits:
        """What other parts must know of it."""
        return _PLAIN

    @property
    def drawing(self) -> Drawing | None:
        """How :meth:`draw` makes its draws, systematically by default; None where it has a way of its own."""
        return _SYSTEMATIC

    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return p, the expected share of each client among the draws, (M,), summing to 1."""
        raise NotImplementedError

    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        """Return the factor that a drawn client puts on its update before it sends it, (M,)."""
        return np.ones(profiles.num_clients)

    def num_draws(self, requested: int, num_clients: int) -> int:
        """Return K, given what the configuration asks for."""
        return requested

    def asked_steps(self, profiles: Profiles, num_draws: int) -> IntVector:
        """Return T that each client is asked for, no more than it offers, (M,)."""
        return profiles.num_steps

    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return how often each client is drawn, (M,)."""
        drawing = self.drawing
        if drawing is None:
            raise NotImplementedError(f"{type(self).__name__} says that it draws in a way of its own: override draw")
        return drawing(probabilities, num_draws, rng)

    def start(self, forecast: Forecast) -> None:
        """Look at typical rounds before the first one."""

    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        """Ask clients before the draw; what is asked is charged to the round."""

    def observe(self, result: RoundResult) -> None:
        """Learn from a finished round; only what was delivered may be used."""


def unbiased_coefficients(weights: Vector, probabilities: Vector) -> Vector:
    """Return w/p, the factor that undoes on average what the sampler prefers; 0 for a client nobody draws, (M,).

    >>> unbiased_coefficients(np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.75, 0.0])).round(6).tolist()
    [2.0, 0.666667, 0.0]
    """
    return np.divide(weights, probabilities, out=np.zeros_like(weights), where=probabilities > 0)


def among(probabilities: Vector, available: BoolVector) -> Vector:
    """Return the probabilities of those who can be drawn, summing to 1; all of them alike where nobody was wanted.

    >>> among(np.array([0.5, 0.3, 0.2]), np.array([True, False, True])).round(3).tolist()
    [0.714, 0.0, 0.286]
    """
    kept = np.where(available, probabilities, 0.0)
    total = kept.sum()
    return kept / total if total > 0 else available / available.sum()


class SelectsByRule(Sampler):
    """Leaves nothing to the draw: :meth:`prepare` or :meth:`observe` sets ``selected``, the K clients of the round.

    They are averaged as they are, so that no claim of unbiasedness is made.
    """

    drawing = Certain()
    selected: IntVector = np.empty(0, dtype=np.int64)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return 1/K for each selected client; w before the first selection."""
        if not len(self.selected):
            return profiles.weights
        return np.bincount(self.selected, minlength=profiles.num_clients) / len(self.selected)


class Importance(Sampler):
    """Draws each client in proportion to its weight: p = w (FedAvg in the paper)."""

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        return profiles.weights


class Uniform(Sampler):
    """Draws K distinct clients, all alike, and restores the weights by the factor M w."""

    drawing: Drawing | None = WithoutReplacement()

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        return np.full(profiles.num_clients, 1 / profiles.num_clients)

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return unbiased_coefficients(profiles.weights, probabilities)


class FullParticipation(Uniform):
    """Asks all M clients in every round; client m enters with weight w."""

    drawing = None  # everybody

    @override
    def num_draws(self, requested: int, num_clients: int) -> int:
        return num_clients

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        return (probabilities > 0).astype(np.int64)  # all but those who cannot be drawn
