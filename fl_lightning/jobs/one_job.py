"""One run of a list, in this process: ``python -m fl_lightning.jobs.one_job JOBS.jsonl NUMBER``, for job arrays."""

import json
import os
import sys
from pathlib import Path

from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs.jobs import Job


def read_job(path: Path, number: int) -> Job:
    """Return a job of a file with one on each line.

    Raises:
        ConfigError: If there is no such job.
    """
    lines = path.read_text().splitlines() if path.is_file() else []
    if not 0 <= number < len(lines):
        raise ConfigError(f"{path} has {len(lines)} jobs, there is none with the number {number}")
    return Job(**json.loads(lines[number]))


def main(arguments: list[str]) -> int:
    """Make the run, or go on with it; return 0 unless it fails."""
    from fl_lightning.jobs.worker import execute

    try:
        job = read_job(Path(arguments[0]), int(arguments[1]))
    except (IndexError, ValueError) as error:
        print(f"fl-lightning: error: {error}: wanted are a file of jobs and a number", file=sys.stderr)
        return 2
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        print(f"{job.name}: {execute(job, sys.stdout)}")
    except (ValueError, OSError, ImportError) as error:
        print(f"fl-lightning: error: {job.name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
