"""TensorBoardMetrics: the rounds of a run in TensorBoard."""

from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger

from fl_lightning.callbacks.base import RoundCallback
from fl_lightning.loop import FederatedLoop
from fl_lightning.types import RoundResult

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
            raise ImportError(
                "TensorBoard is not installed: pip install 'fl-lightning[tensorboard]', or use another --logger"
            ) from None
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
