"""What the loop asks of the parts it is made of.

Any object with these methods will do; nothing needs to be registered.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from fl_lightning.types import Cohort, Conditions, IntVector, Profiles, RoundPlan, Updates, Vector

Forecast = Callable[[], Iterator[Profiles]]  # yields profiles of rounds that will not be played, for expectations


class Federation(Protocol):
    """The clients' data, ready in memory, and the common test data."""

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""

    def batch(self, client: int, indices: IntVector) -> Any:
        """Return the client's examples ``indices`` (each below its size), collated as ``training_step`` takes them."""

    def test_batches(self, batch_size: int) -> Iterator[Any]:
        """Yield the test data in batches as ``test_step`` takes them."""

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return extra metrics of the global weights that only the data knows (the toy's distance to its optimum)."""


class Schedule(Protocol):
    """Decides the conditions of a round: T and q of every client."""

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return T and q of all clients in this round; ``steps_per_epoch`` has one entry for each client."""


class Probe(Protocol):
    """What a sampler may ask of clients before it draws; each question is charged to the round."""

    def losses(self, clients: IntVector) -> Vector:
        """Loss of the global model on one batch of each client, (n,)."""

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Gradient of one batch of each client at the global model, (n, d)."""

    def updates(self, clients: IntVector) -> Updates:
        """Full local training of each client; reused when one of them is drawn."""


class Sampling(Protocol):
    """Decides who takes part."""

    def num_draws(self, num_clients: int) -> int:
        """Return K."""

    def start(self, forecast: Forecast) -> None:
        """Called once before the first round with a way to look at typical rounds."""

    def expected_cohort(self, profiles: Profiles) -> Cohort:
        """Return the law of the draw without drawing (counts are 0): what calibration and diagnosis need."""

    def configure_cohort(self, round_index: int, profiles: Profiles, probe: Probe, seed: int) -> Cohort:
        """Return who takes part in this round."""


class Channel(Protocol):
    """Decides whose upload arrives."""

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
