"""Sampling that looks at the target weights alone."""

import numpy as np
from typing_extensions import override

from fl_lightning.samplers.base import Sampler, unbiased_coefficients
from fl_lightning.samplers.drawing import Drawing, WithoutReplacement
from fl_lightning.types import IntVector, Profiles, Vector


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
        """Return w / p = M w."""
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
