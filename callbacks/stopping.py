"""StopAtTarget: end a run when it is good enough."""

import math

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from fl_lightning.loop import FederatedLoop
from fl_lightning.loop.results import MONITOR, Mode
from fl_lightning.theory.checks import one_of
from fl_lightning.types import RoundResult


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

    def _reached(self, value: float, mode: Mode) -> bool:
        return value <= self.target if mode == "min" else value >= self.target

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Ask the loop to stop once the target is reached."""
        monitor = self.monitor or loop.monitor
        value = result.metrics.get(monitor)
        if value is None and self.monitor is not None and loop.evaluates(result.plan.index):
            raise ValueError(
                f"StopAtTarget(monitor={monitor!r}) finds no such metric: use one of {', '.join(result.metrics)}"
            )
        if value is not None and self._reached(value, self.mode or loop.mode):
            loop.should_stop = True

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor or MONITOR)
        if value is not None and not trainer.sanity_checking and self._reached(float(value), self.mode or "max"):
            trainer.should_stop = True
