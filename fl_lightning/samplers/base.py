"""What a sampler is: one method that returns p."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.parts.traits import SamplerTraits, check_declared
from fl_lightning.samplers.drawing import Drawing, WithReplacement
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector

_PLAIN = SamplerTraits()


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
        """How :meth:`draw` makes its draws; None where it has a way of its own."""
        return WithReplacement()

    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return p, the expected share of each client among the draws, (M,), summing to 1."""
        raise NotImplementedError

    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        """Return the factor that a drawn client puts on its update before it sends it, (M,)."""
        return np.ones(profiles.num_clients)

    def num_draws(self, requested: int, num_clients: int) -> int:
        """Return K, given what the configuration asks for."""
        return requested

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
