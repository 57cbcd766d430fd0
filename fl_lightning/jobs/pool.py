"""Long-lived worker processes that share out the runs of a comparison."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fl_lightning.config.processes import python_command
from fl_lightning.jobs.jobs import Job

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened to a run; all but the job comes from the worker."""

    job: Job
    kind: str  # started | restarted | round | finished | kept | failed
    round_index: int = 0
    num_rounds: int = 0
    headline: str = ""  # the monitored metric and its value, where the round was evaluated
    reason: str = ""
    known: bool = False  # whether the reason is something the user can fix
    again: bool = False  # whether another attempt may succeed: its process died, or is still dying


def worker_environment(num_threads: int) -> dict[str, str]:
    """Return the variables by which a worker finds the package and keeps to its threads."""
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    paths = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**threads, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}


class Worker:
    """A process that makes one run after the other; it ends when its standard input closes.

    Args:
        environment: Variables of the process beside those of this one.
        folder: Where it works.
    """

    def __init__(self, environment: dict[str, str], folder: str | None = None) -> None:
        self._process = subprocess.Popen(
            python_command("fl_lightning.jobs.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends its workers
        )

    @property
    def is_alive(self) -> bool:
        """Whether it can take a job."""
        return self._process.poll() is None

    def follow(self, job: Job) -> Iterator[Event]:
        """Hand over a job and yield what happens to it; its end, or that of the process, is the last event."""
        process = self._process
        try:
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write(json.dumps(asdict(job)) + "\n")
                process.stdin.flush()
                for line in process.stdout:
                    event = Event(job=job, **json.loads(line))
                    yield event
                    if event.kind != "round":
                        return
        except (OSError, ValueError):
            process.kill()
        yield Event(job=job, kind="failed", reason=death(process.wait()), again=True)

    def close(self) -> None:
        """Let it end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class Pool:
    """Runs jobs in worker processes; a worker that dies fails its run and is replaced.

    Args:
        num_workers: Processes at the same time.
        num_threads: Threads of each. The same for every run, because sums over threads differ in their last digits.
        environment: Variables of the workers beside the parent's.
    """

    def __init__(self, num_workers: int, num_threads: int, environment: dict[str, str]) -> None:
        self.num_workers = num_workers
        self._environment = {**worker_environment(num_threads), **environment}
        self._workers: set[Worker] = set()
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Yield what happens, until every job is done."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        running = min(self.num_workers, len(jobs))
        for _ in range(running):
            threading.Thread(target=self._serve, args=(waiting, events), daemon=True).start()
        try:
            while running:
                event = events.get()
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            self._stopping = True
            self._stop()

    def _serve(self, waiting: "queue.SimpleQueue[Job]", events: "queue.SimpleQueue[Event | None]") -> None:
        try:
            self._work(self._jobs(waiting), events.put)
        finally:
            events.put(None)

    def _jobs(self, waiting: "queue.SimpleQueue[Job]") -> Iterator[Job]:
        with contextlib.suppress(queue.Empty):
            while not self._stopping:
                yield waiting.get_nowait()

    def _work(self, jobs: Iterator[Job], show: Callable[[Event], None]) -> None:
        """Let one worker make runs, as long as there are jobs."""
        worker: Worker | None = None
        try:
            for job in jobs:
                if worker is None or not worker.is_alive:
                    worker = Worker(self._environment)
                    self._workers.add(worker)
                show(Event(job=job, kind="started"))
                for event in worker.follow(job):
                    show(event)
        finally:
            if worker is not None:
                worker.close()

    def _stop(self) -> None:
        for worker in self._workers:
            if worker.is_alive:
                worker.kill()


def death(code: int) -> str:
    """Say how a process ended.

    >>> death(-9), death(3)
    ('its process was ended by SIGKILL (out of memory, or by somebody)', 'its process ended with code 3')
    """
    if code >= 0:
        return f"its process ended with code {code}"
    name = signal.Signals(-code).name if -code in {item.value for item in signal.Signals} else f"signal {-code}"
    return f"its process was ended by {name}" + (" (out of memory, or by somebody)" if name == "SIGKILL" else "")
