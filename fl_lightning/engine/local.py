"""The engine: trains the clients of a cohort, answers a sampler's questions, evaluates the global model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fl_lightning.torchvision_guard  # noqa: F401  isort: skip
import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.engine.batches import batch_indices
from fl_lightning.engine.evaluation import collected_logs, evaluate
from fl_lightning.engine.flat import FlatModel
from fl_lightning.protocols import Federation
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import Solver
from fl_lightning.types import IntVector, ModelState, Updates, Vector


@dataclass(frozen=True)
class LocalWork:
    """What the clients of a round have to do, the same whoever does it."""

    round_index: int
    num_steps: IntVector  # T of all M clients
    learning_rate: float
    start: Callable[[int, torch.Tensor], torch.Tensor]  # the weights a client starts from
    gradient_shift: Callable[[int], torch.Tensor | None]  # what a client adds to its gradients


class Engine:
    """Trains clients one after another on one flat model.

    Args:
        test_batch_size: Examples in one batch of the evaluation.
    """

    def __init__(self, test_batch_size: int = 1000) -> None:
        if test_batch_size < 1:
            raise ValueError(f"test_batch_size={test_batch_size} must be at least 1")
        self.test_batch_size = test_batch_size

    def setup(
        self,
        fabric: Fabric,
        module: LightningModule,
        federation: Federation,
        solver: Solver,
        batch_size: int,
        seed: int,
    ) -> ModelState:
        """Bind the engine to a module and its data and return the initial state."""
        if not module.automatic_optimization:
            raise ValueError(
                f"{type(module).__name__} sets automatic_optimization=False, but the federated loop makes the local steps "
                "itself: let training_step return the loss instead"
            )
        self.fabric, self.federation, self.solver = fabric, federation, solver
        self.batch_size, self.seed = batch_size, seed
        self.module = fabric.to_device(module)
        self.model = FlatModel(self.module)
        return self.model.state()

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back."""
        deltas = self.model.weights.new_empty((len(clients), len(self.model.weights)))
        buffers = self.model.buffers.new_empty((len(clients), len(self.model.buffers)))
        losses = np.empty(len(clients))
        self.module.train()
        with collected_logs(self.module):
            for row, client in enumerate(clients.tolist()):
                start = work.start(client, state.weights)
                self.model.load(start, state.buffers)
                losses[row] = self._train_client(client, work)
                torch.sub(start, self.model.weights, out=deltas[row])
                buffers[row] = self.model.buffers
        deltas.div_(work.learning_rate)
        return Updates(clients, deltas, buffers, work.num_steps[clients], losses)

    def _train_client(self, client: int, work: LocalWork) -> float:
        """Take the client's local steps in place and return its mean loss."""
        num_steps = int(work.num_steps[client])
        shift = work.gradient_shift(client)
        steps = self.solver.begin(self.model.weights, self.model.gradient, self.model.parameters, work.learning_rate)
        torch.manual_seed(client_seed(self.seed, Purpose.MODULE, work.round_index, client))
        total = self.model.weights.new_zeros(())
        for index, batch in enumerate(self._batches(client, work.round_index, num_steps)):
            total += self._backward(batch, index)
            if shift is not None:
                self.model.gradient.add_(shift)
            with torch.no_grad():
                steps.step()
        return float(total) / num_steps

    def _batches(self, client: int, round_index: int, num_steps: int) -> Any:
        size = int(self.federation.sizes[client])
        for indices in batch_indices(self.seed, round_index, client, size, self.batch_size, num_steps):
            yield self.fabric.to_device(self.federation.batch(client, indices))

    def _backward(self, batch: Any, index: int) -> torch.Tensor:
        """Leave the gradient of a batch in the gradient buffer and return the loss."""
        self.model.gradient.zero_()
        with self.fabric.autocast():
            loss = training_loss(self.module, batch, index)
        loss.backward()
        return loss.detach()

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client."""
        self.model.load(state.weights, state.buffers)
        self.module.eval()
        losses = np.empty(len(clients))
        with torch.no_grad(), collected_logs(self.module):
            for row, client in enumerate(clients.tolist()):
                (batch,) = self._batches(client, round_index, 1)
                losses[row] = float(training_loss(self.module, batch, 0))
        return losses

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""
        rows = self.model.weights.new_empty((len(clients), len(self.model.weights)))
        self.module.train()
        with collected_logs(self.module):
            for row, client in enumerate(clients.tolist()):
                self.model.load(state.weights, state.buffers)
                torch.manual_seed(client_seed(self.seed, Purpose.MODULE, round_index, client))
                (batch,) = self._batches(client, round_index, 1)
                self._backward(batch, 0)
                rows[row] = self.model.gradient
        return rows

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the test data, and its accuracy per class."""
        self.model.load(state.weights, state.buffers)
        batches = (self.fabric.to_device(batch) for batch in self.federation.test_batches(self.test_batch_size))
        with self.fabric.autocast():
            return evaluate(self.module, batches)


def training_loss(module: LightningModule, batch: Any, index: int) -> torch.Tensor:
    """Return the loss of a training step, whatever form the module returns it in."""
    output = module.training_step(batch, index)
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        raise ValueError(
            f"{type(module).__name__}.training_step must return the loss as a scalar tensor, or a dict with one under "
            f"'loss', but returned {type(output).__name__}"
        )
    return loss
