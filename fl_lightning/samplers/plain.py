"""Sampling that looks at the target weights alone."""

import numpy as np

from fl_lightning.samplers.base import Sampler
from fl_lightning.samplers.drawing import WithoutReplacement
from fl_lightning.types import IntVector, Profiles, Vector


class Importance(Sampler):
    """Draws each client in proportion to its weight: p = w (FedAvg in the paper)."""

    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return w."""
        return profiles.weights


class Uniform(Sampler):
    """Draws K distinct clients, all alike, and restores the weights by the factor M w."""

    drawing = WithoutReplacement()

    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return 1/M."""
        return np.full(profiles.num_clients, 1 / profiles.num_clients)

    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        """Return w / p = M w."""
        return profiles.weights / probabilities


class FullParticipation(Uniform):
    """Asks all M clients in every round; client m enters with weight w."""

    def num_draws(self, requested: int, num_clients: int) -> int:
        """Return M, whatever was requested."""
        return num_clients

    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return one draw of everybody."""
        return np.ones(len(probabilities), dtype=np.int64)
