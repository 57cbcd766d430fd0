"""What is done for one row of a round, by whichever client trainer is free."""

from dataclasses import dataclass

import numpy as np
import torch

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.errors import naming_client
from fl_lightning.parts.protocols import LocalWork
from fl_lightning.types import IntVector, ModelState, Updates, Vector


@dataclass(frozen=True)
class Training:
    """Trains the client of a row and writes its update there."""

    state: ModelState
    work: LocalWork
    updates: Updates

    def __call__(self, trainer: ClientTrainer, row: int) -> None:
        """Do it."""
        out = self.updates
        client = int(out.clients[row])
        with naming_client(trainer.model.module, client, self.work.round_index):
            out.losses[row] = trainer.train(client, self.state, self.work, out.deltas[row], out.buffers[row])


@dataclass(frozen=True)
class AskingLoss:
    """Writes the loss of the global model, which the trainers hold already, on a client's first batch."""

    clients: IntVector
    round_index: int
    losses: Vector

    def __call__(self, trainer: ClientTrainer, row: int) -> None:
        """Do it."""
        client = int(self.clients[row])
        with naming_client(trainer.model.module, client, self.round_index):
            self.losses[row] = trainer.loss(client, self.round_index)


@dataclass(frozen=True)
class AskingGradient:
    """Writes the gradient of a client's first batch at the global model."""

    clients: IntVector
    round_index: int
    state: ModelState
    gradients: torch.Tensor

    def __call__(self, trainer: ClientTrainer, row: int) -> None:
        """Do it."""
        client = int(self.clients[row])
        with naming_client(trainer.model.module, client, self.round_index):
            gradient, _ = trainer.gradient(client, self.state, self.round_index)
            self.gradients[row] = gradient


def empty_updates(state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
    """Return room for the updates of some clients."""
    return Updates(
        clients=clients,
        deltas=state.weights.new_empty((len(clients), len(state.weights))),
        buffers=state.buffers.new_empty((len(clients), len(state.buffers))),
        num_steps=work.num_steps[clients],
        losses=np.empty(len(clients)),
    )
