"""Local training of one client with the hooks of its module."""

from typing import Any

import torch
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.hooks import overrides
from fl_lightning.engine.loss import loss_of, training_output
from fl_lightning.parts.protocols import LocalWork
from fl_lightning.solvers import SGD, LocalSteps


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
            with torch.no_grad():
                steps.step()
            self.position.global_step = index + 1
            total += output["loss"]
            module.on_train_batch_end(output, batch, index)
        module.on_train_epoch_end()
        module.on_train_end()
        return total

    def _backward_with_hooks(self, batch: Any, index: int, optimizer: Optimizer) -> dict[str, Any]:
        """Leave the gradient of a batch in the gradient buffer and return what the step returned."""
        module = self.model.module
        with self.autocast():
            output = training_output(module, batch, index)
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
        if getattr(steps, "optimizer", None) is not optimizer and _settings(optimizer) != settings:
            raise ValueError(
                f"{type(self.model.module).__name__}.on_before_optimizer_step changes the optimizer, but "
                f"{type(self.solver).__name__} of the loop makes the steps: use solver='module'"
            )

    def _gather(self) -> None:
        """Bring gradients that a hook replaced back into the gradient buffer."""
        for parameter, place in zip(self.model.parameters, self.model.gradients, strict=True):
            if parameter.grad is place:
                continue
            if parameter.grad is None:
                place.zero_()
            else:
                place.copy_(parameter.grad)
            parameter.grad = place

    def _optimizer(self, steps: LocalSteps, lr: float) -> Optimizer:
        """Return what hooks are told the optimizer is: the real one, or one with the settings of the loop's SGD."""
        real = getattr(steps, "optimizer", None)
        if isinstance(real, Optimizer):
            return real
        solver = self.solver
        if not isinstance(solver, SGD):
            return torch.optim.SGD(self.model.parameters, lr=lr)
        return torch.optim.SGD(
            self.model.parameters,
            lr=lr,
            momentum=solver.momentum,
            dampening=solver.dampening,
            weight_decay=solver.weight_decay,
            nesterov=solver.nesterov,
        )


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
