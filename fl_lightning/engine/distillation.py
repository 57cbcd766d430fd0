"""A loss that compares the model at hand with the global one, added to whatever a training step returns."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule

from fl_lightning.engine.model import FlatModel, StepError, loss_of, run_step
from fl_lightning.parts.protocols import Batch
from fl_lightning.types import ModelState

Call = tuple[tuple[object, ...], dict[str, object], object]  # what a module was called with, and what it returned
AddedLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of own and global logits, and labels


class Distilled:
    """Adds a loss to the training steps of a module, by a copy of it that has the global model."""

    def __init__(self, module: LightningModule, added: AddedLoss) -> None:
        self.module, self.added = module, added
        self.teacher = FlatModel(copy.deepcopy(module).eval())

    @contextmanager
    def by(self, state: ModelState) -> Iterator[None]:
        """Let the training steps of a round be compared with this model."""
        self.teacher.load(state.weights, state.buffers)
        own, calls = self.module.training_step, list[Call]()

        def step(batch: Batch, index: int) -> object:
            calls.clear()
            output = run_step(own, batch, index)
            logits, labels = self._classified(batch, calls)
            with torch.no_grad():
                taught = self.teacher.module(*calls[0][0], **calls[0][1])
            loss = loss_of(self.module, output) + self.added(logits, taught, labels)
            return {**output, "loss": loss} if isinstance(output, dict) else loss

        handle = self.module.register_forward_hook(
            lambda _, given, named, output: calls.append((given, named, output)), with_kwargs=True
        )
        self.module.training_step = step  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            handle.remove()
            del self.module.training_step

    def _classified(self, batch: Batch, calls: list[Call]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits and the labels of a step, or refuse one that classifies nothing."""
        logits = calls[0][2] if len(calls) == 1 else None
        labels = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
        if (
            not (isinstance(logits, torch.Tensor) and logits.ndim == 2)
            or not (isinstance(labels, torch.Tensor) and labels.ndim == 1)
            or labels.is_floating_point()
        ):
            raise StepError(
                f"distillation needs batches (inputs, labels) and one call of self(inputs) for logits (B, C), but "
                f"{type(self.module).__name__}.training_step called itself {len(calls)} times on a "
                f"{type(batch).__name__}: use a module that classifies so, or another solver"
            )
        return logits, labels
