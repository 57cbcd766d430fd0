"""Evaluation of any LightningModule: what its ``test_step`` logs becomes the round's metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric

from fl_lightning.engine.loss import run_step
from fl_lightning.types import Vector


class LogCollector:
    """Stands in for ``self.log`` while a module is evaluated without a Trainer."""

    def __init__(self) -> None:
        self.batch_size = 1  # of the batch at hand
        self._sums: dict[str, tuple[float, int]] = {}
        self._metrics: dict[str, Metric] = {}

    def log(self, name: str, value: Any, *_: Any, batch_size: int | None = None, **__: Any) -> None:
        """Keep a value, weighted by the size of its batch, or a metric, to be computed at the end."""
        if isinstance(value, Metric):
            self._metrics[name] = value
            return
        size = batch_size or self.batch_size
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + float(value) * size, count + size)

    def log_dict(self, dictionary: Any, *_: Any, batch_size: int | None = None, **__: Any) -> None:
        """Keep several values."""
        for name, value in dictionary.items():
            self.log(name, value, batch_size=batch_size)

    def compute(self) -> dict[str, float]:
        """Return the mean of each value and the result of each metric, and reset the metrics."""
        results = {name: total / count for name, (total, count) in self._sums.items()}
        for name, metric in self._metrics.items():
            results[name] = float(metric.compute())
            metric.reset()
        return results


@contextmanager
def collected_logs(module: LightningModule) -> Iterator[LogCollector]:
    """Send what the module logs to a collector."""
    collector = LogCollector()
    module.log = collector.log  # type: ignore[method-assign]
    module.log_dict = collector.log_dict  # type: ignore[method-assign]
    try:
        yield collector
    finally:
        del module.log, module.log_dict


@contextmanager
def silent_logs(module: LightningModule) -> Iterator[None]:
    """Drop what the module logs: local training has no Trainer that would take it."""
    module.log = module.log_dict = _drop  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.log, module.log_dict


def _drop(*_: Any, **__: Any) -> None:
    pass


def evaluation_step(module: LightningModule) -> str | None:
    """Return the name of the step that evaluates the module: ``test_step``, else ``validation_step``, else nothing."""
    for name in ("test_step", "validation_step"):
        if getattr(type(module), name) is not getattr(LightningModule, name):
            return name
    return None


def evaluate(module: LightningModule, batches: Iterator[Any]) -> tuple[dict[str, float], Vector]:
    """Return the module's metrics over the test batches, and its accuracy per class where it measures one."""
    name = evaluation_step(module)
    if name is None:
        return {}, np.empty(0)
    step = getattr(module, name)
    was_training = module.training
    module.eval()
    # What TorchScript compiles under inference mode, it uses for training as well, and that fails.
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    with torch.no_grad() if scripted else torch.inference_mode(), collected_logs(module) as collector:
        for index, batch in enumerate(batches):
            collector.batch_size = batch_length(batch)
            output = run_step(step, batch, index)
            if isinstance(output, torch.Tensor) and "test_loss" not in collector._sums:
                collector.log("test_loss", output)
        metrics = collector.compute()
        per_class = getattr(module, "class_accuracy", None)
        class_accuracy = np.empty(0)
        if isinstance(per_class, Metric):
            class_accuracy = per_class.compute().double().cpu().numpy()
            per_class.reset()
    module.train(was_training)
    return metrics, class_accuracy


def batch_length(batch: Any) -> int:
    """Return how many examples a batch has: the leading dimension of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return 1
