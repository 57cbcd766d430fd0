"""The runs of a comparison on a Ray cluster: the same workers, wherever Ray puts them."""

import json
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs.jobs import Job
from fl_lightning.jobs.pool import Event, Pool, death, made_event, worker_environment

_RETRIES = 5  # of a run whose process or node died
_SECONDS_BETWEEN_RETRIES = 3.0
_IN_USE = "FolderInUseError"  # by the process that is dying


class RayPool(Pool):
    """Runs jobs as tasks of a Ray cluster; one whose worker or node dies starts again from its last checkpoint.

    All nodes must see the present folder under the same path, and have the same packages.

    Args:
        address: Of the cluster: ``auto``, or ``HOST:PORT``.
        num_workers: Most tasks at the same time.
        num_threads: Threads, and cores asked for, of each.
        environment: Variables of the workers beside those of their node.
    """

    def __init__(
        self, address: str, num_workers: int, num_threads: int, environment: dict[str, str] | None = None
    ) -> None:
        super().__init__(num_workers, num_threads, environment)
        self._variables = {**worker_environment(num_threads), **(environment or {})}
        ray = _ray()
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": self._variables["PYTHONPATH"]}},
            )
        except Exception as error:  # connection errors of several kinds
            raise ConfigError(f"--ray {address}: no cluster answers ({' '.join(str(error).split())[:200]})") from None
        self._task = ray.remote(num_cpus=num_threads, max_retries=0)(play)

    @property
    def num_nodes(self) -> int:
        """Nodes of the cluster that are alive."""
        return sum(bool(node["Alive"]) for node in _ray().nodes())

    @override
    def _serve(self, waiting: "queue.SimpleQueue[Job]", events: "queue.SimpleQueue[Event | None]") -> None:
        try:
            while not self._stopping:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    break
                self._persist(job, events)
        finally:
            events.put(None)

    def _persist(self, job: Job, events: "queue.SimpleQueue[Event | None]") -> None:
        """Play a job until it has an outcome of its own."""
        events.put(Event(job=job, kind="started"))
        for attempt in range(_RETRIES + 1):
            outcome, again = self._play(job, events)
            if self._stopping:
                return
            if not again or attempt == _RETRIES:
                events.put(outcome)
                return
            events.put(Event(job=job, kind="restarted", reason=outcome.reason))
            time.sleep(_SECONDS_BETWEEN_RETRIES)

    def _play(self, job: Job, events: "queue.SimpleQueue[Event | None]") -> tuple[Event, bool]:
        """Play a job once, pass its rounds on, and return how it ended and whether another attempt makes sense."""
        ray = _ray()
        try:
            for reference in self._task.remote(job.to_dict(), self._variables, os.getcwd()):
                message = ray.get(reference)
                event = made_event(job, message)
                if event.kind != "round":
                    return event, message.get("again", False)
                events.put(event)
            reason = "its task ended without a result"
        except ray.exceptions.RayTaskError as error:
            return Event(job=job, kind="failed", reason=" ".join(str(error.cause).split())), False
        except ray.exceptions.RayError as error:
            reason = f"its node or worker was lost ({type(error).__name__})"
        return Event(job=job, kind="failed", reason=reason), True

    @override
    def _stop(self) -> None:
        self._stopping = True
        _ray().shutdown()  # ends the tasks, and their workers, whose standard input closes


def play(job: dict[str, Any], environment: dict[str, str], folder: str) -> Iterator[dict[str, Any]]:
    """Make one run in a worker process on this node and yield what the worker says; its end is the last message."""
    if not os.path.isdir(folder):
        reason = f"node {socket.gethostname()} does not see {folder}: --ray needs a folder that all nodes share"
        yield {"event": "failed", "known": True, "reason": reason}
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_lightning.jobs.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
        cwd=folder,
    )
    try:
        yield from _messages(process, job)
    finally:
        process.kill()
        process.wait()


def _messages(process: "subprocess.Popen[str]", job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a worker without pipes")
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        message: dict[str, Any] = json.loads(line)
        yield {**message, "again": message.get("error") == _IN_USE}
        if message["event"] != "round":
            return
    yield {"event": "failed", "reason": death(process.wait()), "again": True}


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("--ray needs the package ray: pip install 'fl-lightning[ray]'") from None
    return ray
