"""What a sampler is: one method that returns p."""

import numpy as np

from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.samplers.drawing import Drawing, WithReplacement
from fl_lightning.types import IntVector, Profiles, RoundResult, Scope, Vector


class Sampler(Remembers):
    """Decides with which probability each client is drawn.

    Override :meth:`probabilities`; the rest is for samplers that reweight, draw in their own way, or learn. One that
    learns names in ``memory`` the attributes that a resumed run needs.
    """

    drawing: Drawing = WithReplacement()
    # Where p is that of a realised selection ("none") or cannot follow this round's conditions ("average"), a learning
    # rate calibrated in each round would depend on who was just selected, and the objective with it.
    calibration_scope: Scope = "round"
    needs_all_updates = False  # whether it asks for the updates of clients that it may not draw
    run_length: int | None = None  # R, once a run has begun
    asks_vectors = False  # whether what a client is asked is as long as the model; otherwise it is one number

    @property
    def is_fixed(self) -> bool:
        """Whether the draw depends on conditions, seed and round alone: nobody is asked and nothing is learned."""
        kind = type(self)
        return kind.prepare is Sampler.prepare and kind.observe is Sampler.observe

    @property
    def relies_on_forecast(self) -> bool:
        """Whether p rests on the look at typical rounds before the first one alone, whatever is learned later."""
        return False

    @property
    def looks_at_updates(self) -> bool:
        """Whether p depends on what clients compute; by default so where it asks them or learns from uploads."""
        kind = type(self)
        return kind.prepare is not Sampler.prepare or kind.observe is not Sampler.observe

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
        return self.drawing(probabilities, num_draws, rng)

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
