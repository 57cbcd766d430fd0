"""Long-lived worker processes that share out the runs of a comparison."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.jobs.jobs import Job

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened to a run."""

    job: Job
    kind: str  # started | restarted | round | finished | kept | failed
    round_index: int = 0
    num_rounds: int = 0
    headline: str = ""  # the monitored metric and its value, where the round was evaluated
    reason: str = ""
    known: bool = False  # whether the reason is something the user can mend


def worker_environment(num_threads: int) -> dict[str, str]:
    """Return the variables by which a worker finds the package and keeps to its threads."""
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    paths = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**threads, "PYTHONPATH": paths}


class Pool:
    """Runs jobs in worker processes; a worker that dies fails its run and is replaced.

    Args:
        num_workers: Processes at the same time.
        num_threads: Threads of each. The same for every run, because sums over threads differ in their last digits.
        environment: Variables of the workers beside the parent's.
    """

    def __init__(self, num_workers: int, num_threads: int, environment: dict[str, str] | None = None) -> None:
        self.num_workers, self.num_threads = num_workers, num_threads
        self._environment = {**os.environ, **worker_environment(num_threads), **(environment or {})}
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Yield what happens, until every job is done."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=self._serve, args=(waiting, events), daemon=True)
            for _ in range(min(self.num_workers, len(jobs)))
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                event = events.get()
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            self._stop()

    def _serve(self, waiting: "queue.SimpleQueue[Job]", events: "queue.SimpleQueue[Event | None]") -> None:
        """Hand jobs to one worker after the other finishes, and pass its events on."""
        process: subprocess.Popen[str] | None = None
        try:
            while not self._stopping:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    break
                if process is None or process.poll() is not None:
                    process = self._start()
                events.put(Event(job=job, kind="started"))
                if not self._follow(process, job, events):
                    process = None
        finally:
            if process is not None and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
                process.wait()
            events.put(None)

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "fl_lightning.jobs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends its workers
        )
        self._processes.add(process)
        return process

    def _follow(self, process: "subprocess.Popen[str]", job: Job, events: "queue.SimpleQueue[Event | None]") -> bool:
        """Send one job and pass on its events; False when the worker died over it."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a worker without pipes")
        try:
            process.stdin.write(json.dumps(job.to_dict()) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                event = made_event(job, json.loads(line))
                events.put(event)
                if event.kind != "round":
                    return True
        except (OSError, ValueError):
            process.kill()
        code = process.wait()
        if not self._stopping:
            events.put(Event(job=job, kind="failed", reason=death(code)))
        return False

    def _stop(self) -> None:
        self._stopping = True
        for process in self._processes:
            if process.poll() is None:
                process.kill()


def made_event(job: Job, message: dict[str, Any]) -> Event:
    """Return the event that a worker's message tells of."""
    return Event(
        job=job,
        kind=message["event"],
        round_index=message.get("round", 0),
        num_rounds=message.get("rounds", 0),
        headline=message.get("headline", ""),
        reason=message.get("reason", ""),
        known=message.get("known", False),
    )


def death(code: int) -> str:
    """Say how a process ended.

    >>> death(-9), death(3)
    ('its process was ended by SIGKILL (out of memory, or by somebody)', 'its process ended with code 3')
    """
    if code >= 0:
        return f"its process ended with code {code}"
    name = signal.Signals(-code).name if -code in {item.value for item in signal.Signals} else f"signal {-code}"
    return f"its process was ended by {name}" + (" (out of memory, or by somebody)" if name == "SIGKILL" else "")
