"""How far a comparison is, for people and for programs."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.jobs.jobs import Job
from fl_lightning.runs.records import REPLACE

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fl_lightning.jobs.pool import Event


def described(job: Job, outcome: str, reason: str) -> dict[str, object]:
    """Return a run and what became of it, for programs."""
    known = {"algorithm": job.algorithm, "seed": job.seed, "run_dir": job.run_dir}
    return {**known, "outcome": outcome, "reason": reason or None}


class ComparisonProgress:
    """Shows events as they come: a bar for all runs and one for each that is running, or plain lines elsewhere."""

    def __init__(self, num_runs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.num_runs = num_runs
        self.console = Console(stderr=True)
        self.finished = 0
        self.kept = 0
        self.failures: list[Event] = []
        self.runs: list[dict[str, object]] = []  # for programs
        self._headline: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self.bars = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._all = self.bars.add_task("[bold]all runs", total=num_runs, note="")

    def show(self, event: "Event") -> None:
        """Take one event in."""
        name, key = event.job.name, event.job.run_dir  # trials of a grid have one name
        if event.kind == "started":
            self._began[key] = time.monotonic()
            self._tasks[key] = self.bars.add_task(f"  {name}", total=event.job.num_rounds, note="starting")
        elif event.kind == "restarted":
            self._print(f"{name}: starts again: {event.reason}")
        elif event.kind == "round":
            note = self._headline[key] = event.headline or self._headline.get(key, "")
            self.bars.update(self._tasks[key], completed=event.round_index, total=event.num_rounds, note=note)
        else:
            self._close(event)

    def _close(self, event: "Event") -> None:
        name, key = event.job.name, event.job.run_dir
        outcome = f"{time.monotonic() - self._began[key]:.0f} s"
        if event.kind == "failed":
            event = replace(event, reason=event.reason.replace(REPLACE, "give another --out, or --overwrite"))
            self.failures.append(event)
            outcome = f"failed: {event.reason}"
        elif event.kind == "kept":
            self.kept += 1
            outcome = "kept: it was finished before"
        else:
            self.finished += 1
            outcome = "  ".join(filter(None, [self._headline.get(key), outcome]))
        self.runs.append(described(event.job, event.kind, event.reason))
        done = self.finished + self.kept + len(self.failures)
        self.bars.remove_task(self._tasks.pop(key))
        self.bars.update(self._all, completed=done, note=f"{len(self.failures)} failed" * bool(self.failures))
        if event.kind != "kept" or self.bars.disable:
            self._print(f"[{done}/{self.num_runs}] {name}: {outcome}")

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def interrupted(self, folder: Path) -> None:
        """Say what an interrupted comparison has kept, and how to resume it."""
        done, begun = self.finished + self.kept, len(self._tasks)
        kept = f"{done} of {self.num_runs} runs are finished and kept in {folder}"
        self._print(f"interrupted: {kept}, {begun} have begun: the same command resumes them and runs the rest")

    def conclude(self) -> None:
        """Name the runs that failed, each reason once, and count the rest."""
        reasons: dict[str, list[str]] = {}
        for event in self.failures:
            reasons.setdefault(event.reason, []).append(event.job.name)
        for reason, names in reasons.items():
            print(f"fl-lightning: failed: {', '.join(names)}: {reason}", file=sys.stderr)
        parts = [(self.finished, "finished"), (self.kept, "kept from before"), (len(self.failures), "failed")]
        print(f"{self.num_runs} runs: " + ", ".join(f"{number} {what}" for number, what in parts if number))
