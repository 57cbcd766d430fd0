"""Local training of one client on one flat model, and the same with the hooks of its module."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.distillation import Distilled
from fl_lightning.engine.hooks import attached, overrides
from fl_lightning.engine.machine import seed_streams
from fl_lightning.engine.model import FlatModel, differentiable_loss, loss_of, run_step, training_loss
from fl_lightning.parts.protocols import Batch, LocalWork
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import SGD, LocalSteps, NotTrueDistillation, Solver
from fl_lightning.solvers.solver import StepsAlong, StepsOfOptimizer
from fl_lightning.types import ModelState

Gradients = tuple[torch.Tensor | None, ...]


class ClientTrainer:
    """Trains one client after another on a flat model of its own, in Fabric's context ``autocast`` of a precision.

    ``seeded``: whether torch, numpy and Python are seeded for each client, whose module or data draws random numbers.
    """

    def __init__(
        self,
        model: FlatModel,
        solver: Solver,
        batches: ClientBatches,
        autocast: Callable[[], AbstractContextManager[object]],
        seeded: bool = True,
    ) -> None:
        self.model = model
        self.solver = solver.of(model.module)
        self.batches = batches
        self.autocast = autocast
        self.seeded = seeded
        self.position = attached(model.module)
        self.distilled: Distilled | None = None  # where the solver adds a loss
        if isinstance(self.solver, NotTrueDistillation):
            self.distilled = Distilled(model.module, self.solver.added_loss)
        if solver.clip is not None:
            self.position.gradient_clip_val = solver.clip[0]
            self.position.gradient_clip_algorithm = GradClipAlgorithmType(solver.clip[1])

    def train(
        self, client: int, state: ModelState, work: LocalWork, delta: torch.Tensor, buffers: torch.Tensor
    ) -> float:
        """Write a client's update into ``delta`` and ``buffers`` and return its mean loss."""
        model = self.model
        num_steps = int(work.num_steps[client])
        start = work.handout.start(client, state.weights)
        shift = work.handout.gradient_shift(client)
        model.load(start, work.handout.start_buffers(client, state.buffers))
        steps = self.solver.begin(model.weights, model.gradient, model.parameters, work.learning_rate)
        self._begin(client, work.round_index)
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
        plain = shift is None and self.solver.clip is None
        step_along = steps.step_along if plain and isinstance(steps, StepsAlong) else None
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
                self.solver.clip_gradients(model.parameters)
                steps.step()
        return total

    def gradient(self, client: int, state: ModelState, round_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gradient and loss of the client's first batch at the global state; the next call overwrites them."""
        self.model.load(state.weights, state.buffers)
        loss = self.backward(self._first_batch(client, round_index), 0)
        return self.model.gradient, loss

    def loss(self, client: int, round_index: int) -> float:
        """Return the loss of the model as it stands on the client's first batch, without a gradient."""
        batch = self._first_batch(client, round_index)
        with torch.no_grad(), self.autocast():
            return float(training_loss(self.model.module, batch, 0))

    def _begin(self, client: int, round_index: int) -> None:
        if self.seeded:
            seed_streams(client_seed(self.batches.seed, Purpose.MODULE, round_index, client), self.model.weights.device)
        self.position.begin(round_index)

    def _first_batch(self, client: int, round_index: int) -> Batch:
        self._begin(client, round_index)
        (batch,) = self.batches.of_client(client, round_index, 1)
        return batch

    def backward(self, batch: Batch, index: int) -> torch.Tensor:
        """Leave the gradient of a batch in the gradient buffer and return the loss."""
        loss, gradients = self._differentiate(batch, index)
        self._keep(gradients)
        return loss

    def _keep(self, gradients: Gradients) -> None:
        # Taking the gradients out and copying them moves less memory than clearing the buffer and adding to it.
        for place, gradient in zip(self.model.gradients, gradients, strict=True):
            _fill(place, gradient)

    def _differentiate(self, batch: Batch, index: int) -> tuple[torch.Tensor, Gradients]:
        with self.autocast():
            loss = differentiable_loss(self.model.module, batch, index)
        return loss.detach(), torch.autograd.grad(loss, self.model.parameters, allow_unused=True)


def _fill(place: torch.Tensor, gradient: torch.Tensor | None) -> None:
    if gradient is None:
        place.zero_()
    else:
        place.copy_(gradient)


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return a type in which losses can be added up: weights may have half precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class HookedTrainer(ClientTrainer):
    """Calls a module's hooks where Lightning would call them in a fit of one epoch with T batches."""

    @override
    def _take_steps(
        self, client: int, work: LocalWork, num_steps: int, steps: LocalSteps, shift: torch.Tensor | None
    ) -> torch.Tensor:
        module = self.model.module
        self._gather()
        optimizer = self._optimizer(steps, work.learning_rate)
        total = self.model.weights.new_zeros(())
        module.on_train_start()
        module.on_train_epoch_start()
        for index, batch in enumerate(self.batches.of_client(client, work.round_index, num_steps)):
            if module.on_train_batch_start(batch, index) == -1:
                raise ValueError(
                    f"{type(module).__name__}.on_train_batch_start returned -1 to skip the rest of the epoch, but the "
                    "schedule decides how many steps a client makes: set num_steps there"
                )
            output = self._backward_with_hooks(batch, index, optimizer)
            if shift is not None:
                self.model.gradient.add_(shift)
            self._ask_before_step(optimizer, steps)
            module.configure_gradient_clipping(
                optimizer, self.position.gradient_clip_val, self.position.gradient_clip_algorithm
            )
            self._gather()
            with torch.no_grad():
                steps.step()
            self.position.global_step = index + 1
            total += output["loss"]
            module.on_train_batch_end(output, batch, index)
        module.on_train_epoch_end()
        module.on_train_end()
        return total

    def _backward_with_hooks(self, batch: Batch, index: int, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """Leave the gradient of a batch in the gradient buffer and return what the step returned."""
        module = self.model.module
        with self.autocast():
            output = run_step(module.training_step, batch, index)
        loss = loss_of(module, output)
        module.on_before_zero_grad(optimizer)
        if overrides(module, "optimizer_zero_grad"):
            module.optimizer_zero_grad(self.position.current_epoch, index, optimizer)
        else:
            self.model.gradient.zero_()
        module.on_before_backward(loss)
        module.backward(loss)
        module.on_after_backward()
        self._gather()
        extra = output if isinstance(output, dict) else {}
        return {**extra, "loss": loss.detach()}

    def _ask_before_step(self, optimizer: Optimizer, steps: LocalSteps) -> None:
        settings = _settings(optimizer)
        self.model.module.on_before_optimizer_step(optimizer)
        self._gather()
        if not isinstance(steps, StepsOfOptimizer) and _settings(optimizer) != settings:
            raise ValueError(
                f"{type(self.model.module).__name__}.on_before_optimizer_step changes the optimizer, but "
                f"{type(self.solver).__name__} of the loop makes the steps: use solver='module'"
            )

    def _gather(self) -> None:
        """Bring gradients that a hook replaced back into the gradient buffer."""
        for parameter, place in zip(self.model.parameters, self.model.gradients, strict=True):
            if parameter.grad is not place:
                _fill(place, parameter.grad)
                parameter.grad = place

    def _optimizer(self, steps: LocalSteps, lr: float) -> Optimizer:
        """Return what hooks see as the optimizer: the real one, or one with the settings of the loop's SGD."""
        if isinstance(steps, StepsOfOptimizer):
            return steps.optimizer
        solver = self.solver if isinstance(self.solver, SGD) else SGD()
        return torch.optim.SGD(
            self.model.parameters, lr, solver.momentum, solver.dampening, solver.weight_decay, solver.nesterov
        )


def _settings(optimizer: Optimizer) -> list[dict[str, object]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
