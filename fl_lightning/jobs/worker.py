"""A process that runs federations one after the other for ``fl-lightning compare``.

Importing torch and Lightning takes seconds, so a worker imports once and makes many runs. Jobs come in as lines of
JSON on standard input, events go out as lines of JSON on standard output. When standard input closes, because the
parent is done or was killed, the worker ends at once: no run continues without somebody to see it.

``python -m fl_lightning.jobs.worker JOBS.jsonl NUMBER`` makes one run of a list, for job arrays.
"""

import gc
import json
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fl_lightning.config import compose as configs
from fl_lightning.jobs.jobs import Job
from fl_lightning.output import forgiving_output, replace_file

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop
    from fl_lightning.types import RoundResult

_SECONDS_BETWEEN_EVENTS = 0.2
_FIXABLE = (ValueError, OSError, ImportError)  # by the user


class Ticker:
    """A callback that shows the parent how far the run is."""

    def __init__(self, answers: TextIO) -> None:
        self.answers = answers
        self._last = 0.0

    def on_round_end(self, loop: "FederatedLoop", result: "RoundResult") -> None:
        """Send the round, unless one was sent a moment ago."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_EVENTS and loop.round_index < loop.rounds:
            return
        self._last = now
        value = result.metrics.get(loop.monitor)
        name = loop.monitor.removeprefix("test_").replace("_", " ")
        headline = "" if value is None else f"{name} {value:.3f}"
        send(self.answers, kind="round", round_index=loop.round_index, num_rounds=loop.rounds, headline=headline)


def send(answers: TextIO, **event: str | int) -> None:
    """Write one event, by the fields of :class:`fl_lightning.jobs.pool.Event`."""
    answers.write(json.dumps(event) + "\n")
    answers.flush()


def execute(job: Job, answers: TextIO) -> str:
    """Make one run or resume it, and return ``kept`` if it was finished already, else ``finished``."""
    from fl_lightning.config import building

    settings = building.parse(job.merged, [*job.overrides, "--seed", str(job.seed)], job.trusted)
    settings.run_dir = job.run_dir
    if isinstance(settings.fabric.devices, int) and settings.fabric.devices > 1:
        raise configs.ConfigError("compare makes each run in one process: use --fabric.devices 1 and --jobs")
    labels = {"data": job.data, "algorithm": job.algorithm}
    run = building.build(settings, f"{job.data}_{job.algorithm}", labels)
    run.loop.callbacks.insert(0, Ticker(answers))
    return run.execute("never" if job.overwrite else "auto")


def serve(job: Job, answers: TextIO) -> None:
    """Make one run, with what it prints in a log file, and send what became of it."""
    log = Path(job.run_dir).parent / f"seed_{job.seed}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(log) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        with forgiving_output():  # the log's disk may be full
            outcome = execute(job, answers)
        send(answers, kind=outcome)
    except Exception as error:
        from fl_lightning.runs.locking import FolderInUseError

        with forgiving_output():
            traceback.print_exc()
        known = isinstance(error, _FIXABLE)
        name = type(error).__name__
        text = " ".join(str(error).split()) or name
        reason = text if known else f"{name}: {text}"
        send(answers, kind="failed", reason=reason, known=known, again=isinstance(error, FolderInUseError))
    gc.collect()  # parts of a run refer to each other: its data would stay until some later collection


def _listen(jobs: "queue.SimpleQueue[Job]") -> None:
    for line in sys.stdin:
        jobs.put(Job(**json.loads(line)))
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Make one run of a list, or serve jobs until standard input closes."""
    if arguments:
        return _make_one(arguments)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    _limit_threads()
    while True:
        serve(jobs.get(), answers)


def _limit_threads() -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def read_job(path: Path, number: int) -> Job:
    """Return a job of a file with one on each line."""
    lines = path.read_text().splitlines() if path.is_file() else []
    if not 0 <= number < len(lines):
        raise configs.ConfigError(f"{path} has {len(lines)} jobs, there is none with the number {number}")
    return Job(**json.loads(lines[number]))


def _make_one(arguments: list[str]) -> int:
    try:
        job = read_job(Path(arguments[0]), int(arguments[1]))
    except (IndexError, ValueError) as error:
        print(f"fl-lightning: error: {error}: wanted are a file of jobs and a number", file=sys.stderr)
        return 2
    _limit_threads()
    try:
        print(f"{job.name}: {execute(job, sys.stdout)}")
    except _FIXABLE as error:
        print(f"fl-lightning: error: {job.name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
