"""RoundProgress: a bar with the round, the accuracy and the time left."""

import math
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fl_lightning.callbacks.base import RoundCallback
from fl_lightning.loop import FederatedLoop
from fl_lightning.output import forgiving
from fl_lightning.types import RoundPlan, RoundResult


class RoundProgress(RoundCallback):
    """Shows how far a run is: a live bar in a terminal, a line every few rounds elsewhere.

    Args:
        monitor: The metric to show; the loop's headline metric by default.
    """

    not_in_trainer = "it shows rounds; use RichProgressBar"

    def __init__(self, monitor: str | None = None) -> None:
        self.monitor = monitor
        self._bar: Progress | None = None

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Look where to write."""
        if loop.fabric.global_rank:
            return
        self._console = Console(file=forgiving(sys.stderr))
        self._every = max(1, loop.rounds // 10)

    def on_round_start(self, loop: FederatedLoop, plan: RoundPlan) -> None:
        """Open the bar before the first round, when the others have said what they have to say."""
        if not loop.fabric.global_rank and self._bar is None and self._console.is_terminal:
            columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=loop.rounds, completed=loop.round_index)
            self._bar.start()

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Move the bar."""
        if loop.fabric.global_rank:
            return
        shown = self._shown(result.metrics, self.monitor or loop.monitor)
        if self._bar is not None:
            self._bar.update(self._task, completed=loop.round_index, description=shown)
        elif loop.round_index % self._every == 0 or loop.round_index in (1, loop.rounds):
            self._console.print(f"round {loop.round_index}/{loop.rounds}  {shown}", highlight=False)

    def _shown(self, row: dict[str, float], monitor: str) -> str:
        names = dict.fromkeys((monitor, "train_loss"))
        parts = [(name.replace("_", " "), row.get(name)) for name in names]
        return "  ".join(f"{name} {value:.3f}" for name, value in parts if value is not None and not math.isnan(value))

    def on_federation_end(self, loop: FederatedLoop) -> None:
        """Close the bar."""
        self.close()

    on_federation_pause = on_federation_end

    def close(self) -> None:
        """Close the bar, also when a run ends early."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
