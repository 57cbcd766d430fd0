"""What a sampler may ask of clients before it draws, with a bill."""

import numpy as np
import torch

from fl_lightning.parts.protocols import Engine, Handout
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates, Vector


class EngineProbe:
    """Asks clients through the engine, counts the steps, and keeps what was trained: nobody trains twice."""

    def __init__(self, engine: Engine, state: ModelState, plan: RoundPlan, handout: Handout) -> None:
        self._engine, self._state = engine, state
        self._plan, self._handout = plan, handout
        self._trained: Updates | None = None
        self.num_steps = 0  # local steps spent on questions
        self.asked: IntVector = np.empty(0, dtype=np.int64)  # who answered one

    def losses(self, clients: IntVector) -> Vector:
        """Loss of the global model on one batch of each client; a forward pass is charged as a third of a step."""
        self.num_steps += -(-len(clients) // 3)
        self.asked = np.union1d(self.asked, clients)
        return self._engine.losses(self._state, clients, self._plan.index)

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Gradient of one batch of each client at the global model."""
        self.num_steps += len(clients)
        self.asked = np.union1d(self.asked, clients)
        return self._engine.gradients(self._state, clients, self._plan.index)

    def updates(self, clients: IntVector) -> Updates:
        """Full local training of each client."""
        self.num_steps += int(self._plan.profiles.num_steps[clients].sum())
        self.asked = np.union1d(self.asked, clients)
        self._trained = self._engine.train(self._state, self._plan, clients, self._handout)
        absent = np.setdiff1d(clients, self._trained.clients)
        if len(absent):
            raise ValueError(
                f"round {self._plan.index}: the sampler asks clients for their updates before it draws, but "
                f"client {absent[0]} did not answer ({len(absent)} such clients): use one that asks nothing, or "
                "norms='stale'"
            )
        return self._trained

    def trained(self, clients: IntVector, learning_rate: float) -> Updates | None:
        """Return the updates of these clients if all of them were trained already at this learning rate."""
        known = self._trained
        if known is None or abs(learning_rate - self._plan.learning_rate) > 1e-9 * learning_rate:
            return None
        if not np.isin(clients, known.clients).all():
            return None
        return known.rows(np.searchsorted(known.clients, clients))
