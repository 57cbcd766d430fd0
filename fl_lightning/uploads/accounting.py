"""How much a run has told about any one client: epsilon at a delta, for draws that prefer some clients."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fl_lightning.parts.memory import Remembers
from fl_lightning.theory import privacy
from fl_lightning.types import Cohort, IntVector, Vector

KIND = "upper bound by Renyi divergences of real orders"  # of epsilon
_TOLERANCE = 1e-4  # of a noise multiplier, relative; on the safe side
_WATCHED = 64  # clients at least that are looked at while the noise is sought; then all are
_TAIL = 1e-6  # of delta: so improbable are, in each round, the many draws of one client that are left to delta


class Accountant(Remembers):
    """Adds up the Rényi divergences of all rounds for each client, and reports the epsilon of the worst one.

    Epsilon at delta comes from ``dp_accounting`` (extra ``privacy``).

    Args:
        delta: Of the guarantee.
    """

    memory = ("spent", "num_rounds")

    def __init__(self, delta: float) -> None:
        if not 0 < delta < 1:
            raise ValueError(f"delta={delta} must be between 0 and 1: well below 1 over the number of clients")
        self.delta = delta
        self.spent: Vector = np.empty((0, len(privacy.ORDERS)))  # (M, orders)
        self.num_rounds = 0

    def add(self, divergences: Vector) -> None:
        """Add a round, (M, orders)."""
        self.spent = self.spent + divergences if len(self.spent) else divergences
        self.num_rounds += 1

    @property
    def epsilon(self) -> float:
        """Epsilon of the client about whom most was told."""
        return worst_epsilon(self.spent, self.delta_after(self.num_rounds))

    def delta_after(self, num_rounds: int) -> float:
        """Return what is left of delta when the improbable draws of some rounds are taken off."""
        return self.delta * max(1 - _TAIL * num_rounds, 0.5)


def accounting_library() -> Any:
    """Return ``dp_accounting.rdp``.

    Raises:
        ImportError: With how to install it.
    """
    try:
        from dp_accounting import rdp
    except ImportError:
        raise ImportError(
            "dp-accounting is not installed, and a private run needs it: pip install 'fl-lightning[privacy]'"
        ) from None
    return rdp


def worst_epsilon(spent: Vector, delta: float) -> float:
    """Return the largest epsilon of any client, given the sums of its divergences, (M, orders)."""
    if not len(spent):
        return 0.0
    worst = int(np.argmax(privacy.epsilons(spent, delta)))
    epsilon, _ = accounting_library().compute_epsilon(privacy.ORDERS, spent[worst], delta)
    return float(epsilon)


def round_divergences(
    drawing: Any,
    cohort: Cohort,
    ratios: Vector,
    delta: float,
    fixed: float = 0.0,
    some: IntVector | None = None,
    shown: bool = False,
) -> Vector:
    """Return the Rényi divergence of a round for each client, (M, orders).

    Where clients join independently of each other, at most once, and the sum is all that anybody sees, their own
    probability amplifies privacy: :func:`fl_lightning.theory.privacy.sampled_divergence` at rate K p. Else the draws
    count as known: :func:`fl_lightning.theory.privacy.shown_divergence`. There, so many draws of a client that their
    probability is below a millionth of delta are left out, and this probability is taken off delta.

    Args:
        drawing: How the draws are made; has ``distribution``.
        cohort: p and K.
        ratios: Sensitivity of one draw of each client over the standard deviation of the noise, (M,).
        delta: Of the guarantee.
        fixed: Squared ratio of what a drawn client tells besides.
        some: The clients that are asked for; all by default.
        shown: Whether somebody knows who was drawn, however the draws are made.
    """
    counts = drawing.distribution(cohort.probabilities, cohort.num_draws)
    if some is not None:
        counts, ratios = counts[some], ratios[some]
    if shown or not drawing.independent:
        return privacy.shown_divergence(without_tail(counts, _TAIL * delta), ratios, fixed=fixed)
    once = counts[:, 2:].sum(axis=1) == 0
    divergences = np.empty((len(ratios), len(privacy.ORDERS)))
    rates = counts[once, 1] if counts.shape[1] > 1 else np.zeros(int(once.sum()))
    divergences[once] = privacy.sampled_divergence(rates, np.sqrt(ratios[once] ** 2 + fixed))
    if not once.all():
        divergences[~once] = privacy.shown_divergence(counts[~once], ratios[~once], fixed=fixed)
    return divergences


def without_tail(counts: Vector, probability: float) -> Vector:
    """Return P(n = k) without the largest k, which together are at most so probable, (M, largest k + 1).

    >>> without_tail(np.array([[0.9, 0.0999, 0.0001]]), 0.001).tolist()
    [[0.9, 0.0999]]
    """
    tails = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # P(n >= k)
    kept = np.where(tails > probability, counts, 0.0)
    return kept[:, : 1 + int(np.flatnonzero(kept.any(axis=0))[-1])]


class Spending(Protocol):
    """What a whole run tells about each client at a noise multiplier."""

    def __call__(self, multiplier: float, some: IntVector | None) -> Vector:
        """Return the sums of the divergences of some clients, or of all, (n, orders)."""


def noise_for(epsilon: float, delta: float, spent: Spending) -> float:
    """Return the least noise multiplier with which a run stays within epsilon.

    One client decides, so that those are watched about whom most is told, and all of them once at the end.

    Args:
        epsilon: Of the whole run.
        delta: Of the guarantee.
        spent: What the whole run tells.
    """
    reached = privacy.epsilons(spent(1.0, None), delta)
    watched = np.argsort(-reached, kind="stable")[:_WATCHED]
    while True:
        noise = _least_noise(epsilon, delta, spent, np.sort(watched))
        if len(watched) == len(reached):
            return noise
        everybody = privacy.epsilons(spent(noise, None), delta)
        if not (everybody > epsilon).any():
            return noise
        watched = np.union1d(watched, np.argsort(-everybody, kind="stable")[:_WATCHED])


def _least_noise(epsilon: float, delta: float, spent: Spending, some: IntVector) -> float:
    """Return the least noise multiplier with which some clients stay within epsilon."""
    from scipy.optimize import brentq  # imported here: few runs need it

    def excess(log_noise: float) -> float:
        reached = privacy.epsilons(spent(float(np.exp(log_noise)), some), delta).max()
        return float(np.log(max(reached, 1e-12) / epsilon))

    low, high = np.log(0.05), np.log(4.0)
    if excess(low) <= 0:
        return float(np.exp(low))
    while excess(high) > 0:
        low, high = high, high + 2.0
        if high > np.log(1e9):
            raise ValueError(
                f"epsilon={epsilon} is out of reach with any noise: raise epsilon, delta or count_noise, "
                "or make fewer rounds"
            )
    return float(np.exp(brentq(excess, low, high, xtol=_TOLERANCE / 2)) * (1 + _TOLERANCE))


def thinned(indices: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the indices, spread evenly.

    >>> thinned(range(1, 11), 4)
    [1, 4, 7, 10]
    """
    if len(indices) <= most:
        return list(indices)
    return [indices[int(place)] for place in np.linspace(0, len(indices) - 1, max(1, most)).round()]
