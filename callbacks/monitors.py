"""What watches a run: its progress, its target, its cost, and TensorBoard."""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typing_extensions import override

from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.loop import FederatedLoop
from fl_lightning.loop.results import MONITOR, Mode
from fl_lightning.output import forgiving, not_installed
from fl_lightning.parts.memory import Remembers
from fl_lightning.server.budget import Spent
from fl_lightning.theory.checks import one_of
from fl_lightning.types import RoundCosts, RoundPlan, RoundResult


class RoundProgress(RoundCallback):
    """Shows how far a run is: a live bar in a terminal, a line every few rounds elsewhere.

    Args:
        monitor: The metric to show; the loop's headline metric by default.
    """

    not_in_trainer = "it shows rounds; use RichProgressBar"

    def __init__(self, monitor: str | None = None) -> None:
        self.monitor = monitor
        self._bar: Progress | None = None

    def start(self, rounds: int) -> None:
        """Look where to write; in a loop of your own call this, then :meth:`show` after each round and ``close``."""
        self._console = Console(file=forgiving(sys.stderr))
        self._rounds = rounds

    def show(self, round_index: int, row: Mapping[str, float], monitor: str = MONITOR) -> None:
        """Show a round that is finished."""
        names = dict.fromkeys((self.monitor or monitor, "train_loss"))
        values = {name.replace("_", " "): row.get(name, math.nan) for name in names}
        shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items() if not math.isnan(value))
        if self._console.is_terminal:
            self._open(round_index)
        if self._bar is not None:
            self._bar.update(self._task, completed=round_index, description=shown)
        elif round_index % max(1, self._rounds // 10) == 0 or round_index in (1, self._rounds):
            self._console.print(f"round {round_index}/{self._rounds}  {shown}", highlight=False)

    def _open(self, completed: int) -> None:
        if self._bar is None:
            columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=self._rounds, completed=completed)
            self._bar.start()

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Look where to write."""
        if not loop.fabric.global_rank:
            self.start(loop.rounds)

    def on_round_start(self, loop: FederatedLoop, plan: RoundPlan) -> None:
        """Open the bar before the first round, when the others have said what they have to say."""
        if not loop.fabric.global_rank and self._console.is_terminal:
            self._open(loop.round_index)

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Move the bar."""
        if not loop.fabric.global_rank:
            self.show(loop.round_index, result.metrics, loop.monitor)

    def close(self, loop: FederatedLoop | None = None) -> None:
        """Close the bar, also when a run ends early."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    on_federation_end = on_federation_pause = close


def reaches(value: float, target: float | None, mode: Mode) -> bool:
    """Whether a metric is at the target or beyond; without a target it never is."""
    return target is not None and (value <= target if mode == "min" else value >= target)


class StopAtTarget(Callback):
    """Ends the run after the first round whose metric reaches a target; in a plain Trainer, after that epoch.

    Args:
        target: The value to reach.
        monitor: The metric to watch; the loop's headline metric by default, ``test_accuracy`` in a Trainer.
        mode: ``max``: at or above the target is reached. ``min``: at or below it. By default the loop's, ``max`` in a
            Trainer.
    """

    def __init__(self, target: float, monitor: str | None = None, mode: Mode | None = None) -> None:
        if not math.isfinite(target):
            raise ValueError(f"target={target} must be a finite number")
        if mode is not None:
            one_of("mode", mode, Mode)
        self.target = target
        self.monitor, self.mode = monitor, mode
        self._found = False  # the metric, in a plain Trainer

    def reached(self, value: float) -> bool:
        """Return whether a value is at the target or beyond, for a loop of your own."""
        return reaches(value, self.target, self.mode or "max")

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Ask the loop to stop once the target is reached."""
        monitor = self.monitor or loop.monitor
        value = result.metrics.get(monitor)
        if value is None and self.monitor is not None and loop.evaluates(result.plan.index):
            raise ValueError(
                f"StopAtTarget(monitor={monitor!r}) finds no such metric: use one of {', '.join(result.metrics)}"
            )
        if value is not None and reaches(value, self.target, self.mode or loop.mode):
            loop.should_stop = True

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor or MONITOR)
        self._found |= value is not None
        if value is not None and self.reached(float(value)):
            trainer.should_stop = True
        if trainer.current_epoch >= (trainer.check_val_every_n_epoch or 1):
            self.on_train_end(trainer, pl_module)  # what is logged at all was logged by now

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a plain Trainer: say that the metric to watch was never logged."""
        monitor = self.monitor or MONITOR
        if not self._found and monitor not in trainer.callback_metrics:
            logged = ", ".join(trainer.callback_metrics) or "nothing"
            raise MisconfigurationException(
                f"StopAtTarget(monitor={monitor!r}) finds no such metric, so it never stops: logged is {logged}"
            )


class ComputationTime(Remembers, Callback):
    """Adds up what the rounds cost, by the loop's clock: every client that was asked, lost uploads included.

    Adds the columns ``local_steps`` (cumulative), ``computation_time`` (cumulative seconds on all devices),
    ``round_time`` (seconds of this round on the clock), ``synchronous_time`` (its sum over the rounds),
    ``uplink_bytes`` and ``downlink_bytes`` (cumulative), ``training_seconds`` (measured, this round) and ``wall_time``
    (measured since the start).

    Args:
        seconds_per_step: Simulated cost of a local step, one number for all or one for each client, in place of the
            loop's clock; 1 in a plain Trainer.
    """

    memory = ("spent", "wall_time")

    def __init__(self, seconds_per_step: float | list[float] | None = None) -> None:
        if seconds_per_step is not None and not (np.asarray(seconds_per_step) >= 0).all():
            raise ValueError(f"seconds_per_step={seconds_per_step} must not be negative")
        self.seconds_per_step = seconds_per_step
        self.spent, self.wall_time = Spent(), 0.0
        self._resumed_at = time.perf_counter()

    @property
    def local_steps(self) -> int:
        """Local steps so far."""
        return self.spent.local_steps

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Start the clock."""
        self._resumed_at = time.perf_counter() - self.wall_time

    def add_round(
        self,
        num_steps: npt.ArrayLike,
        training_seconds: float = 0.0,
        uplink_bytes: float = 0.0,
        downlink_bytes: float = 0.0,
    ) -> dict[str, float]:
        """Return the columns of a round, for a loop of your own; a step takes ``seconds_per_step``, else a second.

        Args:
            num_steps: Local steps of each client, 0 for those that were not drawn.
            training_seconds: How long the round took, measured.
            uplink_bytes: What all clients sent.
            downlink_bytes: What all clients got.
        """
        steps = np.atleast_1d(np.asarray(num_steps))
        seconds = steps * np.asarray(1.0 if self.seconds_per_step is None else self.seconds_per_step)
        costs = RoundCosts(
            local_steps=int(steps.sum()),
            computation_time=float(seconds.sum()),
            round_time=float(seconds.max()),
            uplink_bytes=uplink_bytes,
            downlink_bytes=downlink_bytes,
        )
        return self._columns(costs, training_seconds)

    def configure_metrics(self, result: RoundResult) -> dict[str, float]:
        """Return the columns of a round."""
        costs = result.costs
        if costs is None:
            raise ValueError("ComputationTime needs the costs of a round: call add_round(num_steps) in your own loop")
        if self.seconds_per_step is not None:
            plan = result.plan
            num_steps = np.where(plan.cohort.counts > 0, plan.profiles.num_steps, 0)
            seconds = num_steps * np.asarray(self.seconds_per_step, dtype=np.float64)
            asking = plan.probed_steps * float(np.mean(self.seconds_per_step))
            round_time = float(seconds.max()) + asking / len(num_steps)
            costs = replace(costs, computation_time=float(seconds.sum()) + asking, round_time=round_time)
        return self._columns(costs, result.training_seconds)

    def _columns(self, costs: RoundCosts, training_seconds: float) -> dict[str, float]:
        self.spent.add(costs)
        self.wall_time = time.perf_counter() - self._resumed_at
        return {
            "local_steps": self.spent.local_steps,
            "computation_time": self.spent.computation_time,
            "round_time": costs.round_time,
            "synchronous_time": self.spent.synchronous_time,
            "uplink_bytes": self.spent.uplink_bytes,
            "downlink_bytes": self.spent.downlink_bytes,
            "training_seconds": training_seconds,
            "wall_time": self.wall_time,
        }

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        if trainer.current_epoch == 0 or self.wall_time == 0:
            self._resumed_at = now - self.wall_time
        self._epoch_began, self._steps_before = now, trainer.global_step

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a plain Trainer, whose one device is a client: log the same columns for an epoch."""
        num_steps = trainer.global_step - self._steps_before
        if isinstance(self.seconds_per_step, list):
            raise MisconfigurationException(
                f"ComputationTime(seconds_per_step={self.seconds_per_step}) has a number per client, and a Trainer "
                "is one client: give one number"
            )
        pl_module.log_dict(self.add_round(num_steps, time.perf_counter() - self._epoch_began))


_AXES = ("local_steps", "computation_time")
_CURVES = ("test_accuracy", "test_loss", "distance")  # and the headline metric


class TensorBoardMetrics(RoundCallback):
    """Logs each round to TensorBoard, and the test metrics against local steps and computation time as well.

    Args:
        save_dir: The folder that ``tensorboard --logdir`` opens.
        config: The run's configuration.
    """

    not_in_trainer = "it logs rounds; use TensorBoardLogger"

    def __init__(self, save_dir: str, config: dict[str, Any] | None = None) -> None:
        self.save_dir, self.config = save_dir, config or {}
        self._logger: TensorBoardLogger | None = None

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Open the log; rounds after the one that is resumed are cut off."""
        if loop.fabric.global_rank:
            return
        try:
            self._logger = TensorBoardLogger(self.save_dir, name="", version="", purge_step=loop.round_index + 1)
        except ModuleNotFoundError:
            raise ImportError(f"{not_installed('tensorboard', 'tensorboard')}, or use another --logger") from None
        self._logger.log_hyperparams(self.config)

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Log the round."""
        if self._logger is None:
            return
        row = result.metrics
        self._logger.log_metrics(dict(row), step=int(row["round"]))
        for axis in _AXES:
            curves = {f"by_{axis}/{name}": row[name] for name in (*_CURVES, loop.monitor) if name in row}
            if axis in row and curves:
                self._logger.log_metrics(curves, step=int(row[axis]))

    def on_federation_end(self, loop: FederatedLoop) -> None:
        """Close the log."""
        if self._logger is not None:
            self._logger.finalize("success")
            self._logger = None

    on_federation_pause = on_federation_end
