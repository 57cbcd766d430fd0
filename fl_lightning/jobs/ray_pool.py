"""The runs of a comparison on a Ray cluster: the same workers, wherever Ray puts them."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

from typing_extensions import override

from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs.jobs import Job
from fl_lightning.jobs.pool import Event, Pool, Worker

_RETRIES = 5  # of a run whose process or node died
_SECONDS_BETWEEN_RETRIES = 3.0


class RayPool(Pool):
    """Runs jobs as tasks of a Ray cluster; one whose worker or node dies starts again from its last checkpoint.

    All nodes must see the present folder under the same path, and have the same packages.

    Args:
        address: Of the cluster: ``auto``, or ``HOST:PORT``.
        num_workers: Most tasks at the same time.
        num_threads: Threads, and cores asked for, of each.
        environment: Variables of the workers beside those of their node.
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
        """Play a job once, show its rounds, and return how it ended."""
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
    worker = Worker(environment, folder)
    try:
        yield from worker.follow(job)
    finally:
        worker.kill()
        worker.close()


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise ImportError("--ray needs the package ray: pip install 'fl-lightning[ray]'") from None
    return ray
