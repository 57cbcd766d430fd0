"""OS, optimal client sampling: clients with large updates are drawn more often."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fl_lightning.aggregators.aggregator import row_norms
from fl_lightning.parts.protocols import Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.learned import LastNorms
from fl_lightning.samplers.sampler import Drawing, Independent, Sampler, unbiased_coefficients
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Profiles, RoundResult, Vector

Norms = Literal["exact", "stale", "first_gradient"]
Budget = Literal["replacement", "optimal", "approximate"]


def optimal_inclusion(scores: npt.ArrayLike, budget: int) -> Vector:
    r"""Return the inclusion probabilities of least variance whose sum is the budget (OCS), (M,).

    With the scores u sorted ascending and l the largest integer with
    :math:`0 < K + l - M \le \sum_{i \le l} u_{(i)} / u_{(l)}`,

    .. math:: \pi_m = (K + l - M) \frac{u_m}{\sum_{i \le l} u_{(i)}} \text{ for the } l \text{ smallest, and } 1
        \text{ for the others.}

    >>> np.round(7 * optimal_inclusion([1, 1, 2, 3, 20, 30], 3), 9).tolist()
    [1.0, 1.0, 2.0, 3.0, 7.0, 7.0]
    """
    u = _checked_scores(scores, budget)
    order = np.argsort(u, kind="stable")
    ascending = u[order]
    total, size = np.cumsum(ascending), np.arange(1, len(u) + 1)
    spare = budget + size - len(u)
    largest = int(size[(spare > 0) & (spare * ascending <= total)].max())
    smallest = order[:largest]
    # Scores that are all zero share what the others leave.
    amounts = u[smallest] if total[largest - 1] > 0 else np.ones(largest)
    inclusion = np.ones(len(u))
    inclusion[smallest] = np.minimum(1, spare[largest - 1] * amounts / amounts.sum())
    return inclusion


def approximate_inclusion(scores: npt.ArrayLike, budget: int, max_iterations: int = 4) -> Vector:
    r"""Return inclusion probabilities that need only sums over the clients (AOCS, fit for secure aggregation), (M,).

    .. math:: \pi_m = \min(1, K u_m / \textstyle\sum u), \text{ then }
        \pi_m \leftarrow \min(1, C \pi_m),\quad C = \frac{K - M + |I|}{\sum_{m \in I} \pi_m},\quad I = \{m : \pi_m < 1\}

    >>> np.round(7 * approximate_inclusion([1, 1, 2, 3, 20, 30], 3), 9).tolist()
    [1.0, 1.0, 2.0, 3.0, 7.0, 7.0]
    """
    u = _checked_scores(scores, budget)
    if not u.any():
        return np.full(len(u), budget / len(u))
    inclusion = np.minimum(1, budget * u / u.sum())
    for _ in range(max_iterations):
        open_ended = inclusion < 1
        mass = inclusion[open_ended].sum()
        if not mass > 0:
            break
        factor = (budget - len(u) + open_ended.sum()) / mass
        if factor <= 1:
            break
        inclusion[open_ended] = np.minimum(1, factor * inclusion[open_ended])
    return inclusion


def _checked_scores(scores: npt.ArrayLike, budget: int) -> Vector:
    u = np.asarray(scores, dtype=np.float64)
    if not (np.isfinite(u).all() and (u >= 0).all()):
        raise ValueError("scores must be finite and at least 0: an update may have diverged, lower the learning rate")
    if not 1 <= budget <= len(u):
        raise ValueError(f"a budget of {budget} is impossible with {len(u)} clients that take part at most once")
    return u


class NormProportional(Sampler):
    r"""Draws clients in proportion to the size of what they have to say (OS: OCS and AOCS).

    .. math:: u_m = w_m \lVert \Delta_m \rVert, \qquad p_m = u_m / \textstyle\sum_j u_j, \qquad c_m = w_m / p_m

    The factor w/p undoes the preference on average, so lost uploads and local work bias it as they bias FedAvg.

    Args:
        norms: Where the norms come from. ``exact``: all M clients train in every round, which is charged. ``stale``:
            the mean gradient of each client when it last arrived, times its A of this round. ``first_gradient``: one
            batch of each client, which is charged, times A.
        budget: ``replacement``: K draws, of which a client may have several. ``optimal``: each client takes part or
            not, K on average, with :func:`optimal_inclusion`. ``approximate``: with :func:`approximate_inclusion`.
        reweight: Whether drawn clients scale by w/p. Without it the objective is badly biased; for ablations only.
        max_iterations: Of the approximate budget.
    """

    memory = ("_last_norms",)

    def __init__(
        self, norms: Norms = "exact", budget: Budget = "replacement", reweight: bool = True, max_iterations: int = 4
    ) -> None:
        one_of("norms", norms, Norms)
        one_of("budget", budget, Budget)
        if max_iterations < 0:
            raise ValueError(f"max_iterations={max_iterations} must not be negative")
        self.norms = norms
        self.budget = budget
        self.reweight = reweight
        self.max_iterations = max_iterations
        self._last_norms = LastNorms()
        self._asked: Vector = np.empty(0)  # norms of the mean gradients of this round

    @property
    @override
    def traits(self) -> SamplerTraits:
        return SamplerTraits(
            asks="nothing" if self.norms == "stale" else "numbers",
            needs_all_updates=self.norms == "exact",
            learns=self.norms == "stale",
            looks_at_updates=True,
        )

    @property
    @override
    def drawing(self) -> Drawing | None:
        return super().drawing if self.budget == "replacement" else Independent()

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        everybody = np.arange(profiles.num_clients)
        if self.norms == "exact":
            self._asked = row_norms(probe.updates(everybody).deltas) / profiles.accumulation
        elif self.norms == "first_gradient":
            self._asked = row_norms(probe.gradients(everybody))

    def _scores(self, profiles: Profiles) -> Vector:
        """Return u; before anybody was asked all mean gradients count as equally long."""
        if self.norms == "stale":
            norms = self._last_norms.estimate(profiles.num_clients)
        else:
            norms = self._asked if len(self._asked) else np.ones(profiles.num_clients)
        scores = profiles.weights * norms * profiles.accumulation
        # Positive wherever the weight is, so that w/p exists; an exact 0 may be followed, an estimated one may not.
        floor = (1e-12 if self.norms == "exact" else 1e-3) * scores.mean()
        return np.where(profiles.weights > 0, np.maximum(scores, floor if floor > 0 else 1.0), 0.0)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        scores = self._scores(profiles)
        if self.budget == "replacement":
            return scores / scores.sum()
        if self.budget == "optimal":
            return optimal_inclusion(scores, num_draws) / num_draws
        return approximate_inclusion(scores, num_draws, self.max_iterations) / num_draws

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        own = unbiased_coefficients(profiles.weights, probabilities)
        return own if self.reweight else np.ones(profiles.num_clients)

    @override
    def observe(self, result: RoundResult) -> None:
        if self.norms == "stale":
            self._last_norms.observe(result)
