"""ComputationTime: what a run costs, in local steps, on the clients' devices and here."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from fl_lightning.memory import Remembers
from fl_lightning.types import RoundResult

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


class ComputationTime(Remembers, Callback):
    """Counts the computation of every client that was asked, lost uploads included.

    Adds the columns ``local_steps`` (cumulative), ``computation_time`` (cumulative seconds on all devices),
    ``round_time`` (seconds of this round if all devices work at once: the slowest one), ``synchronous_time`` (its sum
    over the rounds), ``training_seconds`` (measured, this round) and ``wall_time`` (measured since the start).

    Args:
        seconds_per_step: Simulated cost of a local step, one number for all or one for each client.
    """

    memory = ("local_steps", "computation_time", "synchronous_time", "wall_time")

    def __init__(self, seconds_per_step: float | list[float] = 1.0) -> None:
        if not (np.asarray(seconds_per_step) >= 0).all():
            raise ValueError(f"seconds_per_step={seconds_per_step} must not be negative")
        self.seconds_per_step = seconds_per_step
        self.local_steps, self.computation_time, self.synchronous_time, self.wall_time = 0, 0.0, 0.0, 0.0
        self._resumed_at = time.perf_counter()

    def on_federation_start(self, loop: "FederatedLoop") -> None:
        """Start the clock."""
        self._resumed_at = time.perf_counter() - self.wall_time

    def configure_metrics(self, result: RoundResult) -> dict[str, float]:
        """Return the columns of a round."""
        plan = result.plan
        num_steps = np.where(plan.cohort.counts > 0, plan.profiles.num_steps, 0)
        seconds = num_steps * np.asarray(self.seconds_per_step, dtype=np.float64)
        probing = plan.probed_steps * float(np.mean(self.seconds_per_step))
        round_time = float(seconds.max()) + probing / len(num_steps)
        self._add(int(num_steps.sum()) + plan.probed_steps, float(seconds.sum()) + probing, round_time)
        return self._columns(round_time, result.training_seconds)

    def _add(self, local_steps: int, computation_time: float, round_time: float) -> None:
        self.local_steps += local_steps
        self.computation_time += computation_time
        self.synchronous_time += round_time
        self.wall_time = time.perf_counter() - self._resumed_at

    def _columns(self, round_time: float, training_seconds: float) -> dict[str, float]:
        return {
            "local_steps": self.local_steps,
            "computation_time": self.computation_time,
            "round_time": round_time,
            "synchronous_time": self.synchronous_time,
            "training_seconds": training_seconds,
            "wall_time": self.wall_time,
        }

    @override
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        now = time.perf_counter()
        if trainer.current_epoch == 0 or self.wall_time == 0:
            self._resumed_at = now - self.wall_time
        self._epoch_began, self._steps_before = now, trainer.global_step

    @override
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """In a plain Trainer, whose one device is a client: log the same columns for an epoch."""
        num_steps = trainer.global_step - self._steps_before
        seconds = num_steps * float(np.mean(self.seconds_per_step))
        self._add(num_steps, seconds, seconds)
        pl_module.log_dict(self._columns(seconds, time.perf_counter() - self._epoch_began))
