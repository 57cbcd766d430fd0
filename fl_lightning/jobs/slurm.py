"""The runs of a comparison as an array of Slurm jobs: written as files, submitted where there is ``sbatch``."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fl_lightning.config.compose import ConfigError
from fl_lightning.config.processes import python_command
from fl_lightning.jobs.jobs import Job
from fl_lightning.jobs.pool import worker_environment
from fl_lightning.output import write_durably


def write(
    folder: Path,
    jobs: Sequence[Job],
    options: Sequence[str],
    num_jobs: int,
    num_threads: int,
    environment: dict[str, str],
) -> tuple[Path, Path]:
    """Write the list of runs, the script of the array and that of the report; return the two scripts.

    All nodes must see the folder of the comparison and the present one. Number n of the array makes the n-th run, with
    at most ``num_jobs`` at the same time. The options are those of ``sbatch``.
    """
    home = folder / "slurm"
    home.mkdir(parents=True, exist_ok=True)
    write_durably(home / "jobs.jsonl", "".join(json.dumps(asdict(job)) + "\n" for job in jobs).encode())
    at_once = "" if num_jobs >= len(jobs) else f"%{num_jobs}"
    exports = {**worker_environment(num_threads), **environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    lines.append(f"cd {shlex.quote(os.getcwd())}")
    file = shlex.quote(str((home / "jobs.jsonl").resolve()))
    array = [
        f"--array=0-{len(jobs) - 1}{at_once}",
        f"--cpus-per-task={num_threads}",
        "--requeue",  # a run on a node that fails starts again from its last checkpoint
        f"--output={(home / 'task_%a.out').resolve()}",
    ]
    name = f"--job-name={folder.resolve().name}"
    run = f"exec {shlex.join(python_command('fl_lightning.jobs.worker'))} {file} $SLURM_ARRAY_TASK_ID"
    report = f"exec {shlex.join([*python_command('fl_lightning'), 'report', str(folder.resolve())])}"
    write_durably(home / "array.sh", _script([name, *array, *options], [*lines, run]))
    output = f"--output={(home / 'report.out').resolve()}"
    after = [f"{name}-report", "--cpus-per-task=1", output, *options]
    write_durably(home / "report.sh", _script(after, [*lines, report]))
    return home / "array.sh", home / "report.sh"


def _script(options: Sequence[str], lines: Sequence[str]) -> bytes:
    """Return a script; Slurm reads its options line by line and knows no quotes for the end of one."""
    for option in options:
        if not option.isprintable():
            raise ConfigError(f"{option!r} cannot be an option of sbatch: use a folder and options without line breaks")
    return ("\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "set -e", *lines]) + "\n").encode()


def submit(array: Path, report: Path | None) -> str:
    """Submit the array, and the report to follow it; return what the user should know."""
    if shutil.which("sbatch") is None:
        after = "" if report is None else f", and after it sbatch {report}"
        return f"there is no sbatch here: on a machine of the cluster, sbatch {array}{after}"
    number = _sbatch([str(array)])
    if report is not None:
        _sbatch([f"--dependency=afterany:{number}", str(report)])
    return f"submitted as job {number}: squeue -j {number} shows it"


def _sbatch(arguments: Sequence[str]) -> str:
    done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"sbatch {arguments[-1]}: {' '.join(done.stderr.split()) or f'code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]
