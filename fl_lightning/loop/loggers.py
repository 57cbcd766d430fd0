"""The loggers of Fabric in a federated run."""

from typing import TYPE_CHECKING

from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.loggers import MLFlowLogger

from fl_lightning.parts.memory import Remembers
from fl_lightning.types import RoundResult

if TYPE_CHECKING:
    from fl_lightning.loop.watching import Rounds


class Loggers(Remembers):
    """Gives the metrics of each round to the loggers of Fabric, and a resumed run the same log.

    Args:
        loggers: By names that do not depend on the others.
    """

    memory = ("run_ids",)

    def __init__(self, loggers: dict[str, Logger]) -> None:
        self._loggers = loggers
        self.run_ids: dict[str, str] = {}  # of MLflow

    def on_federation_start(self, loop: "Rounds") -> None:
        """Resume the log: a CSVLogger deletes what it finds, so it gets the earlier rounds again."""
        for name, logger in self._loggers.items():
            if isinstance(logger, CSVLogger):
                for row in loop.record.history:
                    logger.log_metrics(dict(row), step=int(row["round"]))
            elif isinstance(logger, MLFlowLogger) and loop.fabric.is_global_zero:
                logger._run_id = self.run_ids.get(name, logger._run_id)
                self.run_ids[name] = str(logger.run_id)

    def on_round_end(self, loop: "Rounds", result: RoundResult) -> None:
        """Log the round."""
        loop.fabric.log_dict(result.metrics, step=result.plan.index)

    def on_federation_pause(self, loop: "Rounds") -> None:
        """Write what was logged so far."""
        for logger in loop.fabric.loggers:
            logger.save()

    def on_federation_end(self, loop: "Rounds") -> None:
        """Close the logs."""
        for logger in loop.fabric.loggers:
            logger.save()
            logger.finalize("success")
