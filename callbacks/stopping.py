"""StopAtTarget: end a run when it is good enough."""

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from fl_lightning.types import RoundResult

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


class StopAtTarget(Callback):
    """Ends the run after the first round whose accuracy reaches a target; in a plain Trainer, after that epoch.

    Args:
        target: The value to reach.
        monitor: The metric to watch.
    """

    def __init__(self, target: float, monitor: str = "test_accuracy") -> None:
        self.target, self.monitor = target, monitor

    def on_round_end(self, loop: "FederatedLoop", result: RoundResult) -> None:
        """Ask the loop to stop once the target is reached."""
        value = result.metrics.get(self.monitor)
        if value is not None and value >= self.target:
            loop.should_stop = True

    @override
    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        if value is not None and not trainer.sanity_checking and float(value) >= self.target:
            trainer.should_stop = True
