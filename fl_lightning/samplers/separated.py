"""Minimum separation: a client that was drawn rests for some rounds before it can be drawn again."""

from dataclasses import replace

import numpy as np
from typing_extensions import override

from fl_lightning.parts.traits import SamplerTraits, forwards
from fl_lightning.samplers.sampler import Drawing, Importance, Sampler, Systematic
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector


@forwards(Sampler, "sampler")
class Separated(Sampler):
    r"""Draws among those who were not drawn in the last R rounds (the participation of Sun et al. 2025).

    With s the probabilities of another sampler, client m is drawn by s among the rested. Each draw takes it away for R
    rounds, so that its share of the draws in the long run solves

    .. math:: \pi_m \propto s_m (1 - R K \pi_m), \qquad \sum_m \pi_m = 1

    which is what is reported as p: the more rest, the more alike. It holds for many clients, far more than (R + 1) K,
    whose rests are unrelated.

    Args:
        sampler: Decides s; by default the weights do.
        num_rounds: R; with the K of a round, (R + 1) K clients are needed.
    """

    memory = ("sampler", "_rested")
    drawing: Drawing | None = None  # a way of its own

    def __init__(self, sampler: Sampler | None = None, num_rounds: int = 1) -> None:
        if num_rounds < 0:
            raise ValueError(f"num_rounds={num_rounds} must be a number of rounds from 0 up")
        self.sampler = self.wrapped = sampler or Importance()
        self.num_rounds = num_rounds
        self._rested: IntVector = np.empty(0, dtype=np.int64)  # rounds since each client was drawn

    @property
    @override
    def traits(self) -> SamplerTraits:
        return replace(self.sampler.traits, learns=True, consistent=False)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        if (self.num_rounds + 1) * num_draws > profiles.num_clients:
            raise ValueError(
                f"a rest of {self.num_rounds} rounds needs {(self.num_rounds + 1) * num_draws} clients where "
                f"{num_draws} are drawn, but there are {profiles.num_clients}: draw fewer, or lower num_rounds"
            )
        wanted = self.sampler.probabilities(profiles, num_draws)
        away, scale = self.num_rounds * num_draws, 1.0
        for _ in range(200):  # the sum grows with the scale, slower and slower: Newton steps from below
            shares = scale * wanted / (1 + scale * away * wanted)
            slope = float((wanted / (1 + scale * away * wanted) ** 2).sum())
            step = (1 - float(shares.sum())) / slope
            scale += step
            if abs(step) < 1e-14 * scale:
                break
        return shares / shares.sum()

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        rested = self._rested >= self.num_rounds if len(self._rested) else np.ones(len(probabilities), dtype=bool)
        wanted = probabilities / np.maximum(1 - self.num_rounds * num_draws * probabilities, 1e-9) * rested
        return Systematic()(wanted / wanted.sum(), num_draws, rng)

    @override
    def observe(self, result: RoundResult) -> None:
        counts = result.plan.cohort.counts
        before = self._rested if len(self._rested) else np.full(len(counts), self.num_rounds)
        self._rested = np.where(counts > 0, 0, before + 1)
        self.sampler.observe(result)
