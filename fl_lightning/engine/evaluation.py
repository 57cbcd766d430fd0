"""Evaluation of any LightningModule: what its ``test_step`` logs becomes the round's metrics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import SupportsFloat

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric, MetricCollection

from fl_lightning.engine.hooks import attached, overrides, stage_of
from fl_lightning.engine.step import run_step
from fl_lightning.parts.protocols import Batch
from fl_lightning.types import Vector

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


class LogCollector:
    """Stands in for ``self.log`` while a module is evaluated without a Trainer."""

    def __init__(self) -> None:
        self.batch_size = 1  # of the batch at hand
        self._sums: dict[str, tuple[float, int]] = {}
        self._metrics: dict[str, Metric] = {}
        self._values: dict[str, tuple[str, list[float]]] = {}  # what is not to be averaged
        self._returned: tuple[float, int] = (0.0, 0)

    def log(
        self,
        name: str,
        value: Metric | SupportsFloat,
        *_: object,
        batch_size: int | None = None,
        reduce_fx: str | Callable[..., object] = "mean",
        **__: object,
    ) -> None:
        """Keep a value, weighted by the size of its batch, or a metric, to be computed at the end."""
        if isinstance(value, Metric):
            self._metrics[name] = value
            return
        reduction = getattr(reduce_fx, "__name__", reduce_fx)  # torch.max or "max"
        if reduction in _REDUCTIONS:
            self._values.setdefault(name, (reduction, []))[1].append(float(value))
            return
        if reduction != "mean":
            raise ValueError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) is not known here: use mean, sum, min or max, or log a "
                "torchmetrics object"
            )
        size = batch_size or self.batch_size
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + float(value) * size, count + size)

    def log_dict(
        self,
        dictionary: Mapping[str, Metric | SupportsFloat] | MetricCollection,
        *_: object,
        batch_size: int | None = None,
        reduce_fx: str | Callable[..., object] = "mean",
        **__: object,
    ) -> None:
        """Keep several values."""
        for name, value in dictionary.items():
            self.log(name, value, batch_size=batch_size, reduce_fx=reduce_fx)

    def take_returned(self, output: object) -> None:
        """Keep a loss that a step returns, which is the test loss where the module logs none."""
        if isinstance(output, torch.Tensor) and output.numel() == 1:
            total, count = self._returned
            self._returned = (total + float(output) * self.batch_size, count + self.batch_size)

    def compute(self) -> dict[str, float]:
        """Return the mean of each value and the result of each metric, and reset the metrics."""
        results = {name: total / count for name, (total, count) in self._sums.items()}
        results |= {name: _REDUCTIONS[reduction](values) for name, (reduction, values) in self._values.items()}
        for name, metric in self._metrics.items():
            results[name] = float(metric.compute())
            metric.reset()
        total, count = self._returned
        return results if "test_loss" in results or not count else results | {"test_loss": total / count}


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


def evaluate(module: LightningModule, batches: Iterator[Batch]) -> tuple[dict[str, float], Vector]:
    """Return the module's metrics over the test batches, and its accuracy per class where it measures one.

    The module's hooks are called as in a Trainer's test or validation. What a hook logs counts as well.
    """
    stage = stage_of(module)
    if not stage:
        return {}, np.empty(0)
    attached(module).enter("testing" if stage == "test" else "validating")
    # What TorchScript compiles under inference mode, it uses for training as well, and that fails.
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    without_gradients = torch.no_grad() if scripted else torch.inference_mode()
    with without_gradients, collected_logs(module) as collector, _evaluation_mode(module, stage):
        _hook(module, stage, "start")()
        _hook(module, stage, "epoch_start")()
        _take_steps(module, stage, batches, collector)
        collector.batch_size = 1
        per_class = getattr(module, "class_accuracy", None)
        class_accuracy = np.empty(0)
        if isinstance(per_class, Metric):  # before the hook, which may reset it
            class_accuracy = per_class.compute().double().cpu().numpy()
        _hook(module, stage, "epoch_end")()
        metrics = collector.compute()
        if isinstance(per_class, Metric):
            per_class.reset()
        _hook(module, stage, "end")()
    return metrics, class_accuracy


def _hook(module: LightningModule, stage: str, moment: str) -> Callable[..., object]:
    hook: Callable[..., object] = getattr(module, f"on_{stage}_{moment}")
    return hook


def _take_steps(module: LightningModule, stage: str, batches: Iterator[Batch], collector: LogCollector) -> None:
    step = module.test_step if stage == "test" else module.validation_step
    batch_start = _hook(module, stage, "batch_start")
    batch_end = _hook(module, stage, "batch_end")
    for index, batch in enumerate(batches):
        collector.batch_size = batch_length(batch)
        batch_start(batch, index)
        output = run_step(step, batch, index)
        collector.take_returned(output)
        batch_end(output, batch, index)


@contextmanager
def _evaluation_mode(module: LightningModule, stage: str) -> Iterator[None]:
    """Have a module in the mode of evaluation, by its own hooks where it has such."""
    was_training = module.training
    if stage == "validation" and overrides(module, "on_validation_model_zero_grad"):
        module.on_validation_model_zero_grad()
    if overrides(module, f"on_{stage}_model_eval"):
        _hook(module, stage, "model_eval")()
    else:
        module.eval()
    try:
        yield
    finally:
        if overrides(module, f"on_{stage}_model_train"):
            _hook(module, stage, "model_train")()
        else:
            module.train(was_training)


def batch_length(batch: Batch) -> int:
    """Return how many examples a batch has: the leading dimension of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return 1
