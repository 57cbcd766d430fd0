"""A pool that makes runs in this process: starting others takes seconds each."""

import contextlib
import io
from collections.abc import Iterator

from fl_lightning.jobs import worker
from fl_lightning.jobs.jobs import Job
from fl_lightning.jobs.pool import Event


class HerePool:
    """Makes the first few runs; all others count as kept."""

    most: int | None = None

    def __init__(self, *_: object) -> None:
        self.enough = False

    def run(self, jobs: list[Job]) -> Iterator[Event]:
        for index, job in enumerate(jobs):
            yield Event(job=job, kind="started")
            if self.most is not None and index >= self.most:
                yield Event(job=job, kind="kept")
                continue
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    kind = worker.execute(job, io.StringIO())
            except ValueError as error:
                yield Event(job=job, kind="failed", reason=str(error), known=True)
            else:
                yield Event(job=job, kind=kind)
