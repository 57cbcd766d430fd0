"""DeliveryRecorder: a file from which a deployment can be replayed."""

import os
from dataclasses import replace
from pathlib import Path

from fl_lightning.callbacks.base import RoundCallback
from fl_lightning.loop import FederatedLoop
from fl_lightning.output import write_durably
from fl_lightning.system.deliveries import FILE, Answers, as_table, read_deliveries
from fl_lightning.types import RoundResult


class DeliveryRecorder(RoundCallback):
    """Writes who answered and with how many steps, for :class:`fl_lightning.engine.Replayed`.

    The engine must know: it has an attribute ``deliveries`` with the answers of the last round.

    Args:
        run_dir: The folder; the file is called ``deliveries.csv``.
    """

    not_in_trainer = "it records the answers of other machines; use no recorder"

    def __init__(self, run_dir: str) -> None:
        self.path = Path(run_dir) / FILE

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Start a new file, or cut an earlier one back to the round that is resumed."""
        if not isinstance(loop.engine, Answers):
            raise ValueError(
                f"DeliveryRecorder has nothing to record: {type(loop.engine).__name__} trains here, and everybody "
                "answers; leave the recorder out"
            )
        kept = read_deliveries(self.path, loop.round_index) if loop.round_index else []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.path, as_table(kept).encode())

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Append the answers of the round; one that was rejected counts as none."""
        rejected = {fault.client for fault in result.faults}
        answers = loop.engine.deliveries if isinstance(loop.engine, Answers) else []
        last = max((each.question for each in answers), default=0)
        rows = [
            replace(each, arrived=False) if each.question == last and each.client in rejected else each
            for each in answers
        ]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(as_table(rows, header=False))

    def on_federation_save(self, loop: FederatedLoop) -> None:
        """Make sure that no checkpoint is ever ahead of the file."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
