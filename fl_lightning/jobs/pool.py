"""Long-lived worker processes that share out the runs of a comparison: here, or wherever Ray puts them."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from types import ModuleType

from typing_extensions import override

from fl_lightning.config.compose import ConfigError
from fl_lightning.config.processes import python_command
from fl_lightning.jobs.jobs import Job
from fl_lightning.output import not_installed

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_RETRIES = 5  # of a run whose process or node of Ray died
_SECONDS_BETWEEN_RETRIES = 3.0


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


Worker = subprocess.Popen[str]  # a process that makes one run after the other, and ends when its standard input closes


def _start(environment: dict[str, str], folder: str | None = None) -> Worker:
    return subprocess.Popen(
        python_command("fl_lightning.jobs.worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
        cwd=folder,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends its workers
    )


def _follow(worker: Worker, job: Job) -> Iterator[Event]:
    """Hand over a job and yield what happens to it; its end, or that of the process, is the last event."""
    try:
        if worker.stdin is not None and worker.stdout is not None:
            worker.stdin.write(json.dumps(asdict(job)) + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                event = Event(job=job, **json.loads(line))
                yield event
                if event.kind != "round":
                    return
    except (OSError, ValueError):
        worker.kill()
    yield Event(job=job, kind="failed", reason=death(worker.wait()), again=True)


def _close(worker: Worker) -> None:
    if worker.stdin is not None:
        with contextlib.suppress(OSError):
            worker.stdin.close()
    worker.wait()


class Pool:
    """Runs jobs in worker processes; a worker that dies fails its run and is replaced.

    All have the same number of threads, because sums over threads differ in their last digits.
    """

    def __init__(self, num_workers: int, num_threads: int, environment: dict[str, str]) -> None:
        self.num_workers = num_workers
        self._environment = {**worker_environment(num_threads), **environment}
        self.enough = False  # whether no further run is to begin
        self._workers: set[Worker] = set()
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Yield what happens, until every job is done."""
        waiting = iter([*jobs])  # a list's own iterator, which threads may share
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

    def _serve(self, waiting: Iterator[Job], events: "queue.SimpleQueue[Event | None]") -> None:
        try:
            self._work(takewhile(lambda job: not (self._stopping or self.enough), waiting), events.put)
        finally:
            events.put(None)

    def _work(self, jobs: Iterator[Job], show: Callable[[Event], None]) -> None:
        worker: Worker | None = None
        try:
            for job in jobs:
                if worker is None or worker.poll() is not None:
                    worker = _start(self._environment)
                    self._workers.add(worker)
                show(Event(job=job, kind="started"))
                for event in _follow(worker, job):
                    show(event)
        finally:
            if worker is not None:
                _close(worker)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.kill()


class RayPool(Pool):
    """Runs jobs as tasks of a Ray cluster; one whose worker or node dies starts again from its last checkpoint.

    All nodes must see the present folder under the same path, and have the same packages.
    """

    def __init__(self, address: str, num_workers: int, num_threads: int, environment: dict[str, str]) -> None:
        super().__init__(num_workers, num_threads, environment)
        ray = _ray()
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": self._environment["PYTHONPATH"]}},
            )
        except Exception as error:  # connection errors of several kinds
            raise ConfigError(f"--ray {address}: no cluster answers ({' '.join(str(error).split())[:200]})") from None
        self._task = ray.remote(num_cpus=num_threads, max_retries=0)(play)

    @property
    def num_nodes(self) -> int:
        """Nodes of the cluster that are alive."""
        return sum(bool(node["Alive"]) for node in _ray().nodes())

    @override
    def _work(self, jobs: Iterator[Job], show: Callable[[Event], None]) -> None:
        for job in jobs:
            show(Event(job=job, kind="started"))
            for attempts_left in reversed(range(_RETRIES + 1)):
                outcome = self._play(job, show)
                if self._stopping:
                    return
                if not outcome.again or not attempts_left:
                    show(outcome)
                    break
                show(replace(outcome, kind="restarted"))
                time.sleep(_SECONDS_BETWEEN_RETRIES)

    def _play(self, job: Job, show: Callable[[Event], None]) -> Event:
        ray = _ray()
        try:
            for reference in self._task.remote(job, self._environment, os.getcwd()):
                event: Event = ray.get(reference)
                if event.kind != "round":
                    return event
                show(event)
            reason = "its task ended without a result"
        except ray.exceptions.RayTaskError as error:
            return Event(job=job, kind="failed", reason=" ".join(str(error.cause).split()))
        except ray.exceptions.RayError as error:
            reason = f"its node or worker was lost ({type(error).__name__})"
        return Event(job=job, kind="failed", reason=reason, again=True)

    @override
    def _stop(self) -> None:
        _ray().shutdown()  # ends the tasks, and their workers, whose standard input closes


def play(job: Job, environment: dict[str, str], folder: str) -> Iterator[Event]:
    """Make one run in a worker process on this node and yield what happens; its end is the last event."""
    if not os.path.isdir(folder):
        reason = f"node {socket.gethostname()} does not see {folder}: --ray needs a folder that all nodes share"
        yield Event(job=job, kind="failed", known=True, reason=reason)
        return
    worker = _start(environment, folder)
    try:
        yield from _follow(worker, job)
    finally:
        worker.kill()
        _close(worker)


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise ImportError(not_installed("ray", "ray")) from None
    return ray


def death(code: int) -> str:
    """Say how a process ended.

    >>> death(-9), death(3)
    ('its process was ended by SIGKILL (out of memory, or by somebody)', 'its process ended with code 3')
    """
    if code >= 0:
        return f"its process ended with code {code}"
    name = signal.Signals(-code).name if -code in {item.value for item in signal.Signals} else f"signal {-code}"
    return f"its process was ended by {name}" + (" (out of memory, or by somebody)" if name == "SIGKILL" else "")
