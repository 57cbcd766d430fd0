"""What an engine shares that lets others train: the model is evaluated here, by an engine that it has for this."""

from typing import Any

from fl_lightning.parts.protocols import Engine
from fl_lightning.types import ModelState, Vector


class TrainsElsewhere:
    """Leaves everything but training and questions to an engine of this process.

    Args:
        local: Holds the model and evaluates it.
    """

    is_elsewhere = True

    def __init__(self, local: Engine) -> None:
        self.local = local

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the test data, and its accuracy per class."""
        return self.local.evaluate(state)

    def evaluate_batch(self, state: ModelState, batch: Any) -> dict[str, float]:
        """Return the metrics of a state on one batch of the federation."""
        return self.local.evaluate_batch(state, batch)

    def evaluate_clients(self, state: ModelState, round_index: int, max_examples: int) -> list[dict[str, float]] | None:
        """Return nothing where the clients' data is here."""
        return self.local.evaluate_clients(state, round_index, max_examples)

    def load(self, state: ModelState) -> None:
        """Put a state into the module."""
        self.local.load(state)

    def close(self) -> None:
        """End the run."""
        self.local.close()
