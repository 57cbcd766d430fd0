"""Evaluation of any LightningModule: of the global model on the test data, and of each client's on its own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch.distributed import is_initialized
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric, MetricCollection

from fl_lightning.data.derived import HeldOut
from fl_lightning.engine.hooks import attached, overrides, redirected_logs, stage_of
from fl_lightning.engine.model import run_step
from fl_lightning.parts.protocols import Batch, EvaluatesClients, Federation
from fl_lightning.types import BoolVector, IntVector, ModelState, Vector

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}
_RETURNED = "loss that a step returned"  # which is the test loss where the module logs none
_WORST = 0.1  # share of the clients that the worst ones are


class LogCollector:
    """Stands in for ``self.log`` while a module is evaluated without a Trainer."""

    def __init__(self) -> None:
        self.batch_size = 1  # of the batch at hand
        self._sums: dict[str, tuple[float, int]] = {}
        self._metrics: dict[str, Metric] = {}
        self._values: dict[str, tuple[str, list[float]]] = {}  # what is not to be averaged

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
        reduction = reduce_fx.__name__ if hasattr(reduce_fx, "__name__") else reduce_fx  # torch.max or "max"
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

    def compute(self) -> dict[str, float]:
        """Return the mean of each value and the result of each metric, and reset the metrics."""
        results = {name: total / count for name, (total, count) in self._sums.items()}
        results |= {name: _REDUCTIONS[reduction](values) for name, (reduction, values) in self._values.items()}
        for name, metric in self._metrics.items():
            results[name] = float(metric.compute())
            metric.reset()
        returned = results.pop(_RETURNED, None)
        return results if "test_loss" in results or returned is None else results | {"test_loss": returned}


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
    collector = LogCollector()
    logs = redirected_logs(module, collector.log, collector.log_dict)
    with without_gradients, logs, _evaluation_mode(module, stage), _without_sync(module):
        _hook(module, stage, "start")()
        _hook(module, stage, "epoch_start")()
        _take_steps(module, stage, batches, collector)
        collector.batch_size = 1
        per_class = module.class_accuracy if hasattr(module, "class_accuracy") else None
        class_accuracy = np.empty(0)
        if isinstance(per_class, Metric):  # before the hook, which may reset it
            class_accuracy = per_class.compute().cpu().double().numpy()
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
        if isinstance(output, torch.Tensor) and output.numel() == 1:
            collector.log(_RETURNED, output)
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


@contextmanager
def _without_sync(module: LightningModule) -> Iterator[None]:
    """Keep metrics from asking other processes, each of which evaluates on the whole test data: a sum would double."""
    metrics = [part for part in module.modules() if isinstance(part, Metric)] if is_initialized() else []
    asked = [metric.distributed_available_fn for metric in metrics]
    for metric in metrics:
        metric.distributed_available_fn = lambda: False
    try:
        yield
    finally:
        for metric, ask in zip(metrics, asked, strict=True):
            metric.distributed_available_fn = ask


def batch_length(batch: Batch) -> int:
    """Return how many examples a batch has: the leading dimension of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return 1


@dataclass(frozen=True)
class ClientEvaluation:
    """Evaluates the model on each client's own data.

    Args:
        every_n_rounds: Evaluate each n-th round, and the last one.
        held_out: Share of each client's data that is held out from training for it. A client with too little is
            evaluated on its training data; ``clients.csv`` says which. With 0 all are.
        max_examples: Of a client that are looked at, at most.
    """

    every_n_rounds: int = 10
    held_out: float = 0.2
    max_examples: int = 256

    def __post_init__(self) -> None:
        if self.every_n_rounds < 1 or self.max_examples < 1:
            raise ValueError(
                f"evaluate_clients: every_n_rounds={self.every_n_rounds} and max_examples={self.max_examples} must be "
                "at least 1"
            )
        if not 0 <= self.held_out < 1:
            raise ValueError(f"evaluate_clients: held_out={self.held_out} must be at least 0 and below 1")


def as_evaluation(settings: ClientEvaluation | int) -> ClientEvaluation | None:
    """Return what was asked for; a number stands for each n-th round, 0 for never."""
    if isinstance(settings, ClientEvaluation):
        return settings
    if settings < 0:
        raise ValueError(f"evaluate_clients={settings} must be a number of rounds, or 0 for never")
    return ClientEvaluation(settings) if settings else None


class ClientEvaluator:
    """Holds the clients' evaluation data and evaluates on it."""

    def __init__(self, settings: ClientEvaluation, federation: Federation, seed: int) -> None:
        self.settings = settings
        self.data = HeldOut(federation, settings.held_out, seed)
        self._answered: BoolVector = np.empty(0, dtype=bool)  # whose evaluation is known

    def due(self, index: int, last: bool) -> bool:
        """Whether clients are evaluated after a round."""
        return index % self.settings.every_n_rounds == 0 or last

    def __call__(
        self, engine: EvaluatesClients, state: ModelState, index: int, personalised: Callable[[int], ModelState] | None
    ) -> dict[str, Vector]:
        """Return each metric of all clients, (M,), and how many held-out examples it is measured on.

        ``personalised`` returns the model of a client, where clients keep parameters of their own.
        """
        most = self.settings.max_examples
        num_clients = len(self.data.num_held_out)
        rows = engine.evaluate_clients(state, index, most)  # where clients have their data to themselves
        if rows is None:
            states = (state if personalised is None else personalised(client) for client in range(num_clients))
            rows = [engine.evaluate_batch(each, self.data.own_batch(m, most)) for m, each in enumerate(states)]
        self._answered = np.array([bool(row) for row in rows])
        names = dict.fromkeys(name for row in rows for name in row)
        found = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
        return found | {"held_out": self.data.num_held_out.astype(np.float64)}

    def columns(self, found: dict[str, Vector], monitor: str, maximised: bool, slow: IntVector) -> dict[str, float]:
        """Return how each metric is spread over the clients; those that did not answer are left out.

        Which are the worst is known of the headline metric alone.
        """
        places = np.flatnonzero(np.isin(np.flatnonzero(self._answered), slow))
        columns: dict[str, float] = {}
        for name in sorted(found.keys() - {"held_out"}, key=lambda name: (name != monitor, name)):
            short = name.removeprefix("test_")
            spread = fairness(short, found[name][self._answered], maximised, places)
            if name != monitor:
                del spread[f"client_{short}_worst"]
            columns |= spread
        return columns


def slow_half(seconds_per_step: Vector, num_steps: Vector) -> IntVector:
    """Return the slower half of the clients: most seconds per step, or where all have the same, the fewest steps.

    >>> slow_half(np.array([1.0, 1.0, 1.0, 5.0]), np.array([3.0, 1.0, 2.0, 9.0])).tolist()
    [3, 1]
    """
    return np.lexsort((num_steps, -seconds_per_step))[: len(seconds_per_step) // 2]


def fairness(name: str, values: Vector, maximised: bool, slow: IntVector) -> dict[str, float]:
    """Return mean, worst tenth, standard deviation, and the means of the slow and of the fast half.

    >>> columns = fairness("accuracy", np.array([0.2, 0.4, 0.8, 1.0]), True, np.array([0, 1]))
    >>> {name: round(value, 3) for name, value in columns.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'client_accuracy_mean': 0.6, 'client_accuracy_worst': 0.2, 'client_accuracy_deviation': 0.316,
     'client_accuracy_slow': 0.3, 'client_accuracy_fast': 0.9}
    """
    worst = np.sort(values if maximised else -values)[: max(1, round(_WORST * len(values)))]
    is_slow = np.isin(np.arange(len(values)), slow)
    return {
        f"client_{name}_mean": float(values.mean()),
        f"client_{name}_worst": float(worst.mean() if maximised else -worst.mean()),
        f"client_{name}_deviation": float(values.std()),
        f"client_{name}_slow": float(values[is_slow].mean()) if is_slow.any() else float(values.mean()),
        f"client_{name}_fast": float(values[~is_slow].mean()),
    }
