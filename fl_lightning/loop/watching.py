"""Who watches a run: our callbacks, Lightning's where they have a meaning in rounds, and Fabric's loggers."""

import copy
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.registry import _load_external_callbacks
from lightning.pytorch import LightningModule
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.loop import results
from fl_lightning.loop.loggers import Loggers
from fl_lightning.parts import memory
from fl_lightning.parts.protocols import Engine
from fl_lightning.types import ModelState, RoundResult

_LOG = logging.getLogger("fl_lightning")
HOOKS = (
    *(f"on_federation_{moment}" for moment in ("start", "pause", "end", "save", "saved")),
    *("on_round_start", "on_round_end", "on_client_end", "configure_metrics"),
)
_AVERAGE = "Algorithm(averaging=ExponentialAverage(decay=0.95)), which averages the global model over the rounds"
_INSTEAD = (
    ("LearningRateMonitor", "the column learning_rate, which every round and every logger has"),
    ("WeightAveraging", _AVERAGE),
    ("StochasticWeightAveraging", _AVERAGE),
    ("ProgressBar", "fl_lightning.callbacks.RoundProgress"),
    ("Timer", "fl_lightning.callbacks.ComputationTime, and rounds= to end a run"),
    ("GradientAccumulationScheduler", "FederatedLoop(batch_size=...)"),
    (
        "ThroughputMonitor",
        "fl_lightning.callbacks.ComputationTime, with steps and seconds of each round",
    ),
    ("DeviceStatsMonitor", "fl_lightning.callbacks.WandbMetrics: W&B records processors, memory and GPUs by itself"),
    ("OnExceptionCheckpoint", "fl_lightning.callbacks.RoundCheckpoint, from which a run resumes"),
    ("BaseFinetuning", "requires_grad_(False) on the layers that stay as they are"),
)
_FACTORY = "lightning.fabric.callbacks_factory"  # entry points by which a site adds callbacks to each Fabric
_FRESH = "_memory_at_first"


class Rounds(Protocol):
    """What somebody who watches may know and decide of a run."""

    module: LightningModule
    fabric: Fabric
    state: ModelState
    engine: Engine
    record: results.RunRecord
    round_index: int
    should_stop: bool
    evaluate_every: int

    def evaluates(self, index: int) -> bool:
        """Whether the model is evaluated after a round."""


def check_callback(callback: Any) -> None:
    """Refuse a callback that nothing would ever call, and name what to use instead."""
    name = type(callback).__name__
    if isinstance(callback, ModelCheckpoint):
        if callback._every_n_train_steps or callback._train_time_interval is not None:
            raise ValueError(f"{name} saves after rounds here: use every_n_epochs, which counts rounds")
        if callback.save_on_exception:
            raise ValueError(f"{name}(save_on_exception=True) has no meaning here: use RoundCheckpoint, which resumes")
        return
    if isinstance(callback, EarlyStopping) or any(hasattr(callback, hook) for hook in HOOKS):
        return
    for kind, instead in _INSTEAD:
        if isinstance(callback, getattr(lightning_callbacks, kind, ())):
            raise ValueError(f"{name} would never be called in a federated run: use {instead}")
    raise ValueError(f"{name} would never be called in a federated run: it has none of the hooks {', '.join(HOOKS)}")


class Everybody:
    """All callbacks of a run: the loop's, Fabric's and the module's.

    Args:
        own: The schedule, the sampling and the channel, which are no additions wherever they stand.
        given: The callbacks of the loop.
        fabric: Has callbacks of the user, and those that entry points of this machine add.
        module: Its ``configure_callbacks`` stand for those of the same type, as in a Trainer.
    """

    def __init__(
        self, own: tuple[Any, ...], given: list[Any], fabric: Fabric, module: LightningModule | None = None
    ) -> None:
        self._own, self._given = own, given
        self._fabric, found = fabric, [] if module is None else module.configure_callbacks()
        self._of_module = list(found) if isinstance(found, Sequence) else [found]
        for callback in (*self._of_module, *self._added(given)):
            check_callback(callback)
        self._loggers = [Loggers(dict(named(fabric.loggers)))] if fabric.loggers else []
        self._left_out = {id(callback) for callback in fabric._callbacks if not _is_called(callback)}
        self._known = [*given, *fabric._callbacks]
        self.hooks: dict[str, list[Callable[..., Any]]] = {}  # methods of all who watch, once they are bound to a run

    def bind(self, run: Rounds, parts: Iterable[Any]) -> None:
        """Find the hooks of everybody, and of parts that watch as well."""
        kinds = EarlyStopping | ModelCheckpoint
        called = [InRounds(each, run) if isinstance(each, kinds) else each for each in self.called]
        for hook in HOOKS:
            self.hooks[hook] = [getattr(each, hook) for each in (*called, *parts) if hasattr(each, hook)]

    def check_unchanged(self) -> None:
        """Refuse callbacks that came or went during a run, whose hooks are known from its start."""
        if [*self._given, *self._fabric._callbacks] != self._known:
            raise ValueError("the callbacks have changed during a run: give them to the loop before it")

    @property
    def added(self) -> list[Any]:
        """All but the schedule, the sampling and the channel."""
        return self._added(self.called)

    @property
    def called(self) -> list[Any]:
        """All, in the order in which they are called; the loop's last one saves what those before it know."""
        kinds = {type(callback) for callback in self._of_module}
        others = [each for each in (*self._given, *self._fabric._callbacks) if id(each) not in self._left_out]
        return [*self._of_module, *self._loggers, *(each for each in others if type(each) not in kinds)]

    def _added(self, callbacks: Iterable[Any]) -> list[Any]:
        return [callback for callback in callbacks if not any(callback is part for part in self._own)]


def _is_called(callback: Any) -> bool:
    """Check a callback of Fabric; one that an entry point added, and no user of this run, is warned of instead."""
    try:
        check_callback(callback)
    except ValueError as error:
        if type(callback) not in {type(each) for each in _load_external_callbacks(_FACTORY)}:
            raise
        _warn_once(f"left out a callback that the entry point {_FACTORY} adds: {error}")
        return False
    return True


@cache
def _warn_once(text: str) -> None:
    _LOG.warning(text)


def start_anew(part: Any) -> None:
    """Let a part or a callback forget earlier runs, in this loop or in another."""
    if isinstance(part, EarlyStopping | ModelCheckpoint):
        fresh = vars(part).setdefault(_FRESH, {name: copy.copy(value) for name, value in vars(part).items()})
        vars(part).update({name: copy.copy(value) for name, value in fresh.items()})
    else:
        memory.start_anew(part)


def named(callbacks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks by names that do not depend on the others."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__qualname__
        seen[name] += 1
        yield f"callback {name} {seen[name]}", callback


class InRounds:
    """Calls an EarlyStopping or a ModelCheckpoint as a Trainer would whose epochs are the rounds."""

    def __init__(self, callback: Any, run: Rounds) -> None:
        self.callback, self.trainer = callback, TrainerView(run)
        callback.setup(self.trainer, run.module, "fit")

    def on_federation_start(self, loop: Rounds) -> None:
        """Say that training starts."""
        self.callback.on_train_start(self.trainer, loop.module)

    def on_round_end(self, loop: Rounds, result: RoundResult) -> None:
        """Say that an epoch is over, and before it a validation where the round was evaluated."""
        self.trainer.callback_metrics |= {
            name: torch.tensor(float(value)) for name, value in result.metrics.items() if value is not None
        }
        if loop.evaluates(result.plan.index):
            self.callback.on_validation_end(self.trainer, loop.module)
        self.callback.on_train_epoch_end(self.trainer, loop.module)

    def on_federation_end(self, loop: Rounds) -> None:
        """Say that training is over."""
        self.callback.on_train_end(self.trainer, loop.module)


class TrainerView:
    """What EarlyStopping and ModelCheckpoint look at in a Trainer, with rounds for epochs and for steps."""

    fast_dev_run = sanity_checking = False
    ckpt_path = None
    val_check_interval, num_val_batches = 1.0, 1

    def __init__(self, loop: Rounds) -> None:
        self._loop = loop
        self.callback_metrics: dict[str, torch.Tensor] = {}
        self.state = SimpleNamespace(fn=TrainerFn.FITTING)
        self.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(val_loop=SimpleNamespace(_has_run=True)))
        self.check_val_every_n_epoch = loop.evaluate_every
        self.loggers = [logger for logger in loop.fabric.loggers if hasattr(logger, "after_save_checkpoint")]
        self.default_root_dir = os.getcwd()
        self.is_global_zero, self.global_rank = loop.fabric.is_global_zero, loop.fabric.global_rank
        self.world_size = loop.fabric.world_size
        self.strategy = SimpleNamespace(
            broadcast=loop.fabric.broadcast,
            barrier=loop.fabric.barrier,
            remove_checkpoint=self._remove,
            reduce_boolean_decision=self._agreed,
        )

    @property
    def current_epoch(self) -> int:
        """The round, counted from 0 as a Trainer counts epochs."""
        return self._loop.round_index - 1

    @property
    def global_step(self) -> int:
        """The rounds that are finished."""
        return self._loop.round_index

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after this round."""
        return self._loop.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self._loop.should_stop = value

    def save_checkpoint(self, path: str, weights_only: bool | None = None) -> None:
        """Write the module as ``load_from_checkpoint`` takes it; there is no optimizer that outlives a round."""
        loop = self._loop
        loop.engine.load(loop.state)
        loop.fabric.save(path, module_checkpoint(loop.module, loop.round_index))

    def _remove(self, path: str) -> None:
        if self.is_global_zero:
            Path(path).unlink(missing_ok=True)

    def _agreed(self, decision: bool, all: bool = True) -> bool:
        if self.world_size == 1:
            return decision
        votes: Any = self._loop.fabric.all_reduce(torch.tensor(float(decision)), reduce_op="sum")
        return bool(votes == self.world_size) if all else bool(votes > 0)


def module_checkpoint(module: LightningModule, num_rounds: int, with_state: bool = True) -> dict[str, Any]:
    """Return a module as ``load_from_checkpoint`` takes it, in a project that does not know this package.

    Hyperparameters that could not be read back without running code are left out: give them to it as arguments.

    Args:
        module: Its weights, hyperparameters and what its ``on_save_checkpoint`` adds are saved.
        num_rounds: That are finished; the last one counts as the epoch.
        with_state: Whether ``on_save_checkpoint`` is called; what it adds may be of the clients' data.
    """
    checkpoint: dict[str, Any] = {
        "epoch": num_rounds - 1,
        "global_step": num_rounds,
        "pytorch-lightning_version": version("lightning"),
        "state_dict": {name: value.detach().cpu().clone() for name, value in module.state_dict().items()},
        "loops": {},
    }
    if module.hparams and results.readable(dict(module.hparams)):
        checkpoint[module.CHECKPOINT_HYPER_PARAMS_NAME] = module._hparams_name
        checkpoint[module.CHECKPOINT_HYPER_PARAMS_KEY] = dict(module.hparams)
    added = results.module_state(module, num_rounds) if with_state else None
    return checkpoint | (added or {})
