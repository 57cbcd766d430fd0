"""DELTA: clients whose gradient is large or unlike the others' are drawn more often."""

import numpy as np
from typing_extensions import override

from fl_lightning.aggregators.aggregator import row_norms
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.learned import delivered_gradients
from fl_lightning.samplers.sampler import Sampler, unbiased_coefficients
from fl_lightning.types import Profiles, RoundResult, Vector


class DiversityBased(Sampler):
    r"""Learns which clients differ from the rest and draws them more often (DELTA, its practical rule).

    After each round the clients D that arrived share out the probability that they had together, in proportion to

    .. math:: s_m = w_m \bigl[ (1-\beta) \lVert g_m \rVert + \beta \lVert g_m - \bar g_D \rVert \bigr],
        \qquad g_m = \Delta_m / A_m

    while all others keep theirs. The factor w/p undoes the preference on average. Draws are made with replacement,
    because only then is w/(K p) unbiased (the published code draws without).

    Args:
        beta: Weight of the difference from the others against the length.
        floor: No client's probability falls below ``floor / M``.
    """

    memory = ("_learned",)
    traits = SamplerTraits(learns=True, looks_at_updates=True)

    def __init__(self, beta: float = 0.5, floor: float = 1e-3) -> None:
        if not 0 <= beta <= 1:
            raise ValueError(f"beta={beta} must be between 0 and 1")
        if not 0 < floor <= 1:
            raise ValueError(f"floor={floor} must be above 0 and at most 1")
        self.beta, self.floor = beta, floor
        self._learned: Vector = np.empty(0)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return what was learned; at first all clients with a weight are alike."""
        if len(self._learned):
            return self._learned
        wanted = (profiles.weights > 0).astype(np.float64)
        return wanted / wanted.sum()

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return unbiased_coefficients(profiles.weights, probabilities)

    @override
    def observe(self, result: RoundResult) -> None:
        profiles = result.plan.profiles
        probabilities = self.probabilities(profiles, result.plan.cohort.num_draws)
        clients, gradients = delivered_gradients(result)
        if len(clients):
            diversity = row_norms(gradients - gradients.mean(dim=0))
            scores = (1 - self.beta) * row_norms(gradients) + self.beta * diversity
            scores = scores * profiles.weights[clients]
            if np.isfinite(scores).all() and scores.sum() > 0:
                probabilities = probabilities.copy()
                probabilities[clients] = probabilities[clients].sum() * scores / scores.sum()
        probabilities = np.where(profiles.weights > 0, np.maximum(probabilities, self.floor / profiles.num_clients), 0)
        self._learned = probabilities / probabilities.sum()
