"""The display of a comparison: a bar for all runs and one for each that is running, or plain lines elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fl_lightning.jobs.pool import Event


class ComparisonProgress:
    """Shows events as they come.

    Args:
        num_runs: How many runs there are.
    """

    def __init__(self, num_runs: int) -> None:
        self.num_runs = num_runs
        self.console = Console(stderr=True)
        self.finished, self.kept = 0, 0
        self.failures: list[Event] = []
        self._headline: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> "ComparisonProgress":
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description:<26}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._progress = Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=self.console)
            self._all = self._progress.add_task("[bold]all runs", total=self.num_runs, note="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def done(self) -> int:
        """Runs that are over, in whatever way."""
        return self.finished + self.kept + len(self.failures)

    def show(self, event: Event) -> None:
        """Take one event in."""
        name = event.job.name
        if event.kind == "started":
            self._began[name] = time.monotonic()
            if self._progress is not None:
                self._tasks[name] = self._progress.add_task(f"  {name}", total=event.job.num_rounds, note="starting")
        elif event.kind == "restarted":
            self.console.print(f"{name}: starts again: {event.reason}", highlight=False, markup=False, soft_wrap=True)
        elif event.kind == "round":
            self._headline[name] = event.headline or self._headline.get(name, "")
            if self._progress is not None:
                note = self._headline[name]
                self._progress.update(self._tasks[name], completed=event.round_index, total=event.num_rounds, note=note)
        else:
            self._close(event)

    def _close(self, event: Event) -> None:
        name = event.job.name
        if event.kind == "failed":
            self.failures.append(event)
        elif event.kind == "kept":
            self.kept += 1
        else:
            self.finished += 1
        seconds = f"{time.monotonic() - self._began[name]:.0f} s"
        outcome = {"kept": "kept: it was finished before", "failed": f"failed: {event.reason}"}.get(
            event.kind, "  ".join(filter(None, [self._headline.get(name), seconds]))
        )
        if self._progress is not None:
            self._progress.remove_task(self._tasks.pop(name))
            self._progress.update(
                self._all, completed=self.done, note=f"{len(self.failures)} failed" * bool(self.failures)
            )
        if self._progress is None or event.kind != "kept":
            self.console.print(
                f"[{self.done}/{self.num_runs}] {name}: {outcome}", highlight=False, markup=False, soft_wrap=True
            )

    def conclude(self) -> None:
        """Name the runs that failed, each reason once, and count the rest."""
        reasons: dict[str, list[Event]] = {}
        for event in self.failures:
            reasons.setdefault(event.reason, []).append(event)
        for reason, events in reasons.items():
            print(f"fl-lightning: failed: {', '.join(event.job.name for event in events)}: {reason}", file=sys.stderr)
        parts = [(self.finished, "finished"), (self.kept, "kept from before"), (len(self.failures), "failed")]
        print(f"{self.num_runs} runs: " + ", ".join(f"{number} {what}" for number, what in parts if number))
