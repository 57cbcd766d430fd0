"""TiFL: clients of one speed together, the tier that learns least more often."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector


class Tiers(Sampler):
    r"""Draws one tier of equally fast clients, then K of its members (TiFL).

    .. math:: p_m = \frac{P_t}{|t|}, \qquad m \in t

    Tiers are made once, from the seconds that clients take in typical rounds, and have K members or more. Every
    ``interval`` rounds all clients are asked for their loss (the paper takes the accuracy on their test data), which is
    charged. Where that of the last tier did not fall, :math:`P_t \propto` the rank of the tier's loss. The selected are
    averaged as they are: the weights drop out, and with ``adaptive`` the objective depends on the data.

    Args:
        num_tiers: Tiers, fewer where one would have fewer than K members.
        adaptive: Whether the losses decide about P; otherwise all tiers are alike.
        interval: Rounds between two questions.
        credits: How often a tier can be drawn at most, while another has some left; None: as often as it likes.
    """

    drawing = None  # a tier, then its members
    memory = ("_chances", "_losses", "_used", "_last", "_finished")

    def __init__(
        self, num_tiers: int = 5, adaptive: bool = True, interval: int = 10, credits: int | None = None
    ) -> None:
        for name, value in (("num_tiers", num_tiers), ("interval", interval), ("credits", credits)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.num_tiers, self.adaptive = num_tiers, adaptive
        self.interval, self.credits = interval, credits
        self._seconds: Vector = np.empty(0)
        self._of_client: IntVector = np.empty(0, dtype=np.int64)  # the tier of each client, (M,)
        self._chances: Vector = np.empty(0)  # P, (tiers,)
        self._losses: Vector = np.empty(0)  # at the last question, (tiers,)
        self._used: IntVector = np.empty(0, dtype=np.int64)  # draws of each tier
        self._last, self._finished = 0, 0  # tier, rounds

    @property
    @override
    def traits(self) -> SamplerTraits:
        known = SamplerTraits(needs_forecast=True, needs_seconds=True)
        asking = SamplerTraits(
            asks="numbers", learns=True, looks_at_updates=True, needs_forecast=True, needs_seconds=True, scope="none"
        )
        return asking if self.adaptive or self.credits else known

    @override
    def start(self, forecast: Forecast) -> None:
        self._seconds = np.mean([profiles.seconds for profiles in forecast()], axis=0)
        self._of_client = np.empty(0, dtype=np.int64)

    def _tiers(self, profiles: Profiles, num_draws: int) -> IntVector:
        """Return the tier of each client, the fastest first, the same throughout a run, (M,)."""
        if len(self._of_client) != profiles.num_clients:
            seconds = self._seconds if len(self._seconds) else profiles.seconds
            number = max(1, min(self.num_tiers, len(seconds) // num_draws))
            self._of_client = np.empty(len(seconds), dtype=np.int64)
            self._of_client[np.argsort(seconds, kind="stable")] = np.arange(len(seconds)) * number // len(seconds)
        return self._of_client

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        if not self.adaptive or self._finished % self.interval or not self._finished:
            return
        tiers, there = self._tiers(profiles, num_draws), np.flatnonzero(profiles.weights)
        number = np.maximum(np.bincount(tiers[there], minlength=int(tiers.max()) + 1), 1)
        losses = np.bincount(tiers[there], probe.losses(there), minlength=len(number)) / number
        if not len(self._losses) or losses[self._last] >= self._losses[self._last]:
            ranks = np.argsort(np.argsort(losses, kind="stable"), kind="stable") + 1.0
            self._chances = ranks / ranks.sum()
        self._losses = losses

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        tiers = self._tiers(profiles, num_draws)
        there = (profiles.weights > 0).astype(np.float64)
        number = np.bincount(tiers, there)
        chances = np.where(number > 0, self._chances if len(self._chances) else 1.0, 0.0)
        left = np.ones_like(chances) if not len(self._used) or self.credits is None else self._used < self.credits
        chances = chances * left if (chances * left).any() else chances
        unnormalised = there * (chances / np.maximum(number, 1))[tiers]
        return unnormalised / unnormalised.sum()

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return the counts of K members of one tier, or of all of it that can be drawn."""
        tiers = self._of_client
        first = rng.choice(len(probabilities), p=probabilities)
        members = np.flatnonzero((tiers == tiers[first]) & (probabilities > 0))
        counts = np.zeros(len(probabilities), dtype=np.int64)
        counts[rng.permutation(members)[:num_draws]] = 1
        return counts

    @override
    def observe(self, result: RoundResult) -> None:
        self._finished = result.plan.index
        if result.plan.cohort.counts.any():
            tiers = self._of_client
            self._last = int(tiers[np.argmax(result.plan.cohort.counts)])
            used = self._used if len(self._used) else np.zeros(int(tiers.max()) + 1, dtype=np.int64)
            self._used = used + (np.arange(len(used)) == self._last)
