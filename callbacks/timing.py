"""ComputationTime: what a run costs, in local steps, on the clients' devices and here."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from fl_lightning.parts.memory import Remembers
from fl_lightning.server.budget import Spent
from fl_lightning.types import RoundCosts, RoundPlan, RoundResult

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


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

    def on_federation_start(self, loop: "FederatedLoop") -> None:
        """Start the clock."""
        self._resumed_at = time.perf_counter() - self.wall_time

    def configure_metrics(self, result: RoundResult) -> dict[str, float]:
        """Return the columns of a round."""
        costs = result.costs
        if costs is None:
            raise ValueError("ComputationTime needs the costs of a round: run it in fl_lightning.FederatedLoop")
        if self.seconds_per_step is not None:
            costs = self._at_own_pace(result.plan, costs)
        return self._columns(costs, result.training_seconds)

    def _at_own_pace(self, plan: RoundPlan, costs: RoundCosts) -> RoundCosts:
        num_steps = np.where(plan.cohort.counts > 0, plan.profiles.num_steps, 0)
        seconds = num_steps * np.asarray(self.seconds_per_step, dtype=np.float64)
        asking = plan.probed_steps * float(np.mean(self.seconds_per_step))  # type: ignore[arg-type]
        round_time = float(seconds.max()) + asking / len(num_steps)
        return replace(costs, computation_time=float(seconds.sum()) + asking, round_time=round_time)

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
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        now = time.perf_counter()
        if trainer.current_epoch == 0 or self.wall_time == 0:
            self._resumed_at = now - self.wall_time
        self._epoch_began, self._steps_before = now, trainer.global_step

    @override
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """In a plain Trainer, whose one device is a client: log the same columns for an epoch."""
        num_steps = trainer.global_step - self._steps_before
        seconds = num_steps * (1.0 if self.seconds_per_step is None else float(np.mean(self.seconds_per_step)))
        costs = RoundCosts(
            local_steps=num_steps, computation_time=seconds, round_time=seconds, uplink_bytes=0.0, downlink_bytes=0.0
        )
        pl_module.log_dict(self._columns(costs, time.perf_counter() - self._epoch_began))
