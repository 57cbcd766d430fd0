"""Who watches a run: our callbacks, Lightning's where they have a meaning in rounds, and Fabric's loggers."""

import copy
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.parts import memory
from fl_lightning.parts.protocols import Engine
from fl_lightning.types import ModelState, RoundResult

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
)
_FRESH = "_memory_at_first"


class Rounds(Protocol):
    """What somebody who watches may know and decide of a run."""

    module: LightningModule
    fabric: Fabric
    state: ModelState
    engine: Engine
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


def start_anew(part: Any) -> None:
    """Let a part or a callback forget earlier runs, in this loop or in another."""
    if isinstance(part, EarlyStopping | ModelCheckpoint):
        fresh = vars(part).setdefault(_FRESH, {name: copy.copy(value) for name, value in vars(part).items()})
        vars(part).update({name: copy.copy(value) for name, value in fresh.items()})
    else:
        memory.start_anew(part)


def watchers(callbacks: Iterable[Any], run: Rounds) -> list[Any]:
    """Return everybody who watches a run, ready to be called: its callbacks, then Fabric's loggers."""
    kinds = EarlyStopping | ModelCheckpoint
    found = [InRounds(callback, run) if isinstance(callback, kinds) else callback for callback in callbacks]
    return [*found, Loggers()] if run.fabric.loggers else found


def named(callbacks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks by names that do not depend on the others."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__qualname__
        seen[name] += 1
        yield f"callback {name} {seen[name]}", callback


class Loggers:
    """Gives the metrics of each round to the loggers of Fabric."""

    def on_round_end(self, loop: Rounds, result: RoundResult) -> None:
        """Log the round."""
        loop.fabric.log_dict(result.metrics, step=result.plan.index)

    def on_federation_pause(self, loop: Rounds) -> None:
        """Write what was logged so far."""
        for logger in loop.fabric.loggers:
            logger.save()

    def on_federation_end(self, loop: Rounds) -> None:
        """Close the logs."""
        for logger in loop.fabric.loggers:
            logger.save()
            logger.finalize("success")


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
        loop.fabric.save(path, _checkpoint(loop))

    def _remove(self, path: str) -> None:
        if self.is_global_zero:
            Path(path).unlink(missing_ok=True)

    def _agreed(self, decision: bool, all: bool = True) -> bool:
        if self.world_size == 1:
            return decision
        votes: Any = self._loop.fabric.all_reduce(torch.tensor(float(decision)), reduce_op="sum")
        return bool(votes == self.world_size) if all else bool(votes > 0)


def _checkpoint(loop: Rounds) -> dict[str, Any]:
    module = loop.module
    checkpoint: dict[str, Any] = {
        "epoch": loop.round_index - 1,
        "global_step": loop.round_index,
        "pytorch-lightning_version": version("lightning"),
        "state_dict": {name: value.detach().cpu().clone() for name, value in module.state_dict().items()},
        "loops": {},
    }
    if module.hparams:
        checkpoint[module.CHECKPOINT_HYPER_PARAMS_NAME] = module._hparams_name
        checkpoint[module.CHECKPOINT_HYPER_PARAMS_KEY] = dict(module.hparams)
    module.on_save_checkpoint(checkpoint)
    return checkpoint
