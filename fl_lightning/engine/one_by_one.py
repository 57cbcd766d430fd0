"""Clients trained one after another, each on all threads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.cpu import tuned
from fl_lightning.engine.evaluation import silent_logs
from fl_lightning.engine.streams import kept_streams
from fl_lightning.engine.tasks import AskingGradient, AskingLoss, Training, empty_updates
from fl_lightning.parts.protocols import LocalWork
from fl_lightning.types import IntVector, ModelState, Updates, Vector

Task = Callable[[ClientTrainer, int], None]


class OneByOne:
    """Trains clients one after another; the other ways spread the same tasks differently.

    Args:
        trainers: Those that may work at the same time; this way uses the first.
        cpu_tuning: Whether modules are arranged for a processor while they train.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], cpu_tuning: bool) -> None:
        self.trainers, self.cpu_tuning = trainers, cpu_tuning

    def spread(self, task: Task, rows: Sequence[int]) -> None:
        """Do the task for all rows."""
        for row in rows:
            task(self.trainers[0], row)

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back, in the given order."""
        updates = empty_updates(state, clients, work)
        longest_first = np.argsort(-updates.num_steps, kind="stable").tolist()
        with self.prepared(training=True):
            self.spread(Training(state, work, updates), longest_first)
        return updates

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client, (n,)."""
        losses = np.empty(len(clients))
        for trainer in self.trainers:
            trainer.model.load(state.weights, state.buffers)
        with self.prepared(training=False):
            self.spread(AskingLoss(clients, round_index, losses), range(len(clients)))
        return losses

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""
        gradients = state.weights.new_empty((len(clients), len(state.weights)))
        with self.prepared(training=True):
            self.spread(AskingGradient(clients, round_index, state, gradients), range(len(clients)))
        return gradients

    @contextmanager
    def prepared(self, training: bool) -> Iterator[None]:
        """Have all modules in the wanted mode, arranged for the processor, and with their logs dropped.

        What is seeded for clients leaves no trace in the streams that others draw from.
        """
        with ExitStack() as stack:
            if any(trainer.seeded for trainer in self.trainers):
                stack.enter_context(kept_streams(self.trainers[0].model.weights.device))
            for trainer in self.trainers:
                module = trainer.model.module
                stack.enter_context(silent_logs(module))
                if self.cpu_tuning:
                    stack.enter_context(tuned(module, trainer.seeded))
                if module.training != training:
                    module.train(training)
            yield
