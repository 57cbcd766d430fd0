"""FedACS: a bias in sampling that cancels the bias of links and local work."""

from typing import Literal

import numpy as np
from typing_extensions import override

from fl_lightning import theory
from fl_lightning.parts.protocols import Forecast
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Profiles, RoundResult, Vector

Knowledge = Literal["instant", "mean", "estimated"]
Corrects = Literal["links and work", "links"]


class HeterogeneityAware(Sampler):
    r"""Draws clients so that the objective stays the one that was asked for (FedACS).

    .. math:: p_m = \frac{w_m / ((1-q_m) A_m)}{\sum_j w_j / ((1-q_j) A_j)}

    With this p and anonymous averaging :math:`\Omega = w` in every round. Where clients cannot be drawn in all rounds,
    w is divided by how often each can and the step is shorter when few can, so that :math:`\Omega = w` over the rounds
    (:class:`fl_lightning.samplers.selection.Selection`).

    Args:
        knowledge: ``instant``: the server knows q and A of this round, as in the paper. ``mean``: it knows only the
            long-run mean of (1-q) A, which is consistent on average. ``estimated``: it knows nothing and learns the
            delivery rate and the work of each client from what arrives; one that has not arrived yet counts as average.
        prior: with ``estimated``, how many imagined draws at the average rate each client starts with.
        corrects: ``links``: leave A out, for an aggregator that divides by it, such as ``NormalizedMean``. All updates
            are then equally long and no client is drawn more than 1/(1-q) times as often as its weight says, which is
            what noise for privacy needs (``docs/private.md``).
    """

    memory = ("_drawn", "_delivered", "_work")

    def __init__(
        self, knowledge: Knowledge = "instant", prior: float = 2.0, corrects: Corrects = "links and work"
    ) -> None:
        one_of("knowledge", knowledge, Knowledge)
        one_of("corrects", corrects, Corrects)
        if not prior > 0:
            raise ValueError(f"prior={prior} must be positive")
        self.knowledge, self.prior = knowledge, prior
        self.corrects = corrects
        self._mean_yield: Vector = np.empty(0)  # E[(1-q) A]
        self._drawn: Vector = np.empty(0)
        self._delivered: Vector = np.empty(0)
        self._work: Vector = np.empty(0)  # sum of A over the deliveries

    @property
    @override
    def traits(self) -> SamplerTraits:
        """Arrivals and reported work are all that is learned."""
        return SamplerTraits(
            learns=self.knowledge == "estimated",
            needs_forecast=self.knowledge == "mean",
            scope="round" if self.knowledge == "instant" else "average",
            consistent=True,
        )

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        presence = profiles.conditions.presence
        weights = profiles.weights if presence is None else profiles.weights / np.maximum(presence, 1e-9)
        if self.knowledge == "instant":
            return theory.heterogeneity_aware_probabilities(weights, profiles.failure_rates, self._work_of(profiles))
        if self.knowledge == "mean" and not len(self._mean_yield):
            raise ValueError("knowledge='mean' needs a look at typical rounds: call start(forecast) first")
        known = self._mean_yield if self.knowledge == "mean" else self._estimated_yield(profiles.num_clients)
        unnormalised = weights / known
        return unnormalised / unnormalised.sum()

    @override
    def start(self, forecast: Forecast) -> None:
        if self.knowledge == "mean":
            total, times = np.zeros(1), np.zeros(1)
            for profiles in forecast():
                # A client adds something in rounds in which it can be drawn: their mean counts.
                chance = 1.0 if profiles.conditions.chance is None else profiles.conditions.chance
                total = total + chance * (1 - profiles.failure_rates) * self._work_of(profiles)
                times = times + chance
            self._mean_yield = np.divide(total, times, out=np.ones_like(total), where=times > 0)

    def _work_of(self, profiles: Profiles) -> Vector:
        """Return A, or 1 where something else corrects it, (M,)."""
        return np.ones(profiles.num_clients) if self.corrects == "links" else profiles.accumulation

    def _estimated_yield(self, num_clients: int) -> Vector:
        """Shrink each client's delivery rate and work towards the average of those that arrived so far."""
        if not len(self._drawn):
            self._drawn, self._delivered, self._work = (np.zeros(num_clients) for _ in range(3))
        num_delivered = self._delivered.sum()
        rate = (num_delivered + 1) / (self._drawn.sum() + 1)
        work = self._work.sum() / num_delivered if num_delivered else 1.0
        rates = (self._delivered + self.prior * rate) / (self._drawn + self.prior)
        works = (self._work + self.prior * work) / (self._delivered + self.prior)
        return rates * works

    @override
    def observe(self, result: RoundResult) -> None:
        if self.knowledge == "estimated":
            # Draws, not clients: right for links that n draws share as well as for one link for each draw.
            self._drawn = self._drawn + result.plan.cohort.counts
            self._delivered = self._delivered + result.delivered
            self._work = self._work + result.delivered * self._work_of(result.plan.profiles)
