"""Local training of one client on one flat model."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.flat import FlatModel
from fl_lightning.engine.loss import differentiable_loss, training_loss
from fl_lightning.engine.stand_in import attached
from fl_lightning.engine.streams import seed_streams
from fl_lightning.parts.protocols import LocalWork
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import LocalSteps, Solver
from fl_lightning.types import ModelState


class ClientTrainer:
    """Trains one client after another on a flat model of its own.

    Args:
        model: The model whose weights are moved.
        solver: Makes the steps.
        batches: The clients' data.
        autocast: Fabric's context of the chosen precision.
        seeded: Whether to seed torch, numpy and Python for each client, for modules and data that draw random numbers.
    """

    def __init__(
        self,
        model: FlatModel,
        solver: Solver,
        batches: ClientBatches,
        autocast: Callable[[], AbstractContextManager[Any]],
        seeded: bool = True,
    ) -> None:
        self.model, self.solver, self.batches = model, solver.of(model.module), batches
        self.autocast, self.seeded = autocast, seeded
        self.position = attached(model.module)

    def train(
        self, client: int, state: ModelState, work: LocalWork, delta: torch.Tensor, buffers: torch.Tensor
    ) -> float:
        """Write a client's update into ``delta`` and ``buffers`` and return its mean loss."""
        model, num_steps = self.model, int(work.num_steps[client])
        start = work.handout.start(client, state.weights)
        shift = work.handout.gradient_shift(client)
        model.load(start, work.handout.start_buffers(client, state.buffers))
        steps = self.solver.begin(model.weights, model.gradient, model.parameters, work.learning_rate)
        self._seed(client, work.round_index)
        self.position.begin(work.round_index)
        total = self._take_steps(client, work, num_steps, steps, shift)
        torch.sub(start, model.weights, out=delta).div_(work.learning_rate)
        buffers.copy_(model.gather())
        return float(total) / num_steps

    def _take_steps(
        self, client: int, work: LocalWork, num_steps: int, steps: LocalSteps, shift: torch.Tensor | None
    ) -> torch.Tensor:
        """Make the local steps and return the sum of the losses."""
        model = self.model
        total = torch.zeros((), dtype=precise(model.weights.dtype), device=model.weights.device)
        step_along = getattr(steps, "step_along", None) if shift is None else None
        for index, batch in enumerate(self.batches.of_client(client, work.round_index, num_steps)):
            self.position.global_step = index
            loss, gradients = self._differentiate(batch, index)
            total += loss
            with torch.no_grad():
                if step_along is not None:
                    step_along(model.parameters, gradients)
                    continue
                self._keep(gradients)
                if shift is not None:
                    model.gradient.add_(shift)
                steps.step()
        return total

    def gradient(self, client: int, state: ModelState, round_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gradient and loss of the client's first batch at the global state; the next call overwrites them."""
        self.model.load(state.weights, state.buffers)
        self._seed(client, round_index)
        self.position.begin(round_index)
        (batch,) = self.batches.of_client(client, round_index, 1)
        loss = self.backward(batch, 0)
        return self.model.gradient, loss

    def loss(self, client: int, round_index: int) -> float:
        """Return the loss of the model as it stands on the client's first batch, without a gradient."""
        self._seed(client, round_index)
        self.position.begin(round_index)
        (batch,) = self.batches.of_client(client, round_index, 1)
        with torch.no_grad(), self.autocast():
            return float(training_loss(self.model.module, batch, 0))

    def _seed(self, client: int, round_index: int) -> None:
        if self.seeded:
            seed_streams(client_seed(self.batches.seed, Purpose.MODULE, round_index, client), self.model.weights.device)

    def backward(self, batch: Any, index: int) -> torch.Tensor:
        """Leave the gradient of a batch in the gradient buffer and return the loss."""
        loss, gradients = self._differentiate(batch, index)
        self._keep(gradients)
        return loss

    def _keep(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        # Taking the gradients out and copying them moves less memory than clearing the buffer and adding to it.
        for place, gradient in zip(self.model.gradients, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                place.copy_(gradient)

    def _differentiate(self, batch: Any, index: int) -> tuple[torch.Tensor, tuple[torch.Tensor | None, ...]]:
        with self.autocast():
            loss = differentiable_loss(self.model.module, batch, index)
        return loss.detach(), torch.autograd.grad(loss, self.model.parameters, allow_unused=True)


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return a type in which losses can be added up: weights may have half precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
