"""What a sampler may ask of clients before it draws, with a bill."""

import numpy as np
import torch

from fl_lightning.engine.local import Engine, LocalWork
from fl_lightning.types import IntVector, ModelState, Updates, Vector


class EngineProbe:
    """Asks clients through the engine and counts the steps.

    Answers are kept for the round: a plan may be made several times until its learning rate is found, and nobody trains
    twice.
    """

    def __init__(self, engine: Engine, state: ModelState, work: LocalWork) -> None:
        self._engine, self._state, self._work = engine, state, work
        self._losses: dict[bytes, Vector] = {}
        self._gradients: dict[bytes, torch.Tensor] = {}
        self._trained: Updates | None = None
        self.num_steps = 0  # local steps spent on questions

    def losses(self, clients: IntVector) -> Vector:
        """Loss of the global model on one batch of each client; a forward pass is charged as a third of a step."""
        key = clients.tobytes()
        if key not in self._losses:
            self.num_steps += -(-len(clients) // 3)
            self._losses[key] = self._engine.losses(self._state, clients, self._work.round_index)
        return self._losses[key]

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Gradient of one batch of each client at the global model."""
        key = clients.tobytes()
        if key not in self._gradients:
            self.num_steps += len(clients)
            self._gradients[key] = self._engine.gradients(self._state, clients, self._work.round_index)
        return self._gradients[key]

    def updates(self, clients: IntVector) -> Updates:
        """Full local training of each client."""
        if self._trained is None or not np.array_equal(self._trained.clients, clients):
            self._trained = self._engine.train(self._state, clients, self._work)
            self.num_steps += int(self._work.num_steps[clients].sum())
        return self._trained

    def trained(self, clients: IntVector, learning_rate: float) -> Updates | None:
        """Return the updates of these clients if all of them were trained already at this learning rate."""
        known = self._trained
        if known is None or abs(learning_rate - self._work.learning_rate) > 1e-9 * learning_rate:
            return None
        rows = np.searchsorted(known.clients, clients)
        if not np.isin(clients, known.clients).all():
            return None
        return Updates(clients, known.deltas[rows], known.buffers[rows], known.num_steps[rows], known.losses[rows])
