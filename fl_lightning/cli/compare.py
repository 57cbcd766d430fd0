"""``fl-lightning compare``: algorithms x seeds on one data set, in parallel, paired by seed, and a report of it."""

import argparse
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.jobs import jobs, tuning
from fl_lightning.jobs.jobs import Job
from fl_lightning.output import write_durably

if TYPE_CHECKING:
    from fl_lightning.cli.progress import ComparisonProgress
    from fl_lightning.jobs.pool import Event, Pool

_EPILOG = """every other --KEY VALUE goes to all runs, as in train:  --loop.rounds 50 --logger none

examples:
  fl-lightning compare --config digits.yaml --algorithms all --seeds 0:3
  fl-lightning compare --configs mnist_fedacs.yaml mine.yaml --seeds 0:5 --jobs 4 --out runs/mine
  fl-lightning compare --config digits.yaml --algorithms fedacs,fedavg --grid loop.lr=0.01,0.02,0.05
  fl-lightning compare --config mnist.yaml --algorithms all --seeds 0:4 --ray auto

Started again, it keeps the runs that are finished and resumes the rest."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs are made."""

    address: str | None  # of a Ray cluster; None: here
    num_jobs: int  # at the same time
    threads: int  # of each
    project: str  # of W&B


def make_parser() -> OneLineParser:
    """Return the parser of the options that are compare's own."""
    parser = OneLineParser(
        prog="fl-lightning compare",
        description=__doc__,
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", action="append", default=[], help="what all runs share: digits.yaml, mnist.yaml, ..."
    )
    parser.add_argument("--algorithms", help="names or files, separated by commas, or all")
    parser.add_argument(
        "--configs", nargs="+", default=[], help="complete configs to compare, instead of the two above"
    )
    parser.add_argument("--seeds", default="0:3", help="0:5 (the end left out) or 0,1,2 (default: 0:3)")
    parser.add_argument(
        "--budget", help="what each run may cost, such as synchronous_time=500 or local_steps=9000,uplink_bytes=1e8"
    )
    parser.add_argument("--jobs", type=int, help="runs at the same time (default: one for each core)")
    parser.add_argument("--threads", type=int, help="threads of each run (default: cores / jobs; 1 on a cluster)")
    parser.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, or HOST:PORT of its head")
    parser.add_argument(
        "--slurm",
        nargs="?",
        const="",
        metavar="OPTIONS",
        help="write and submit a Slurm job array; its options as one text: --slurm='--partition=long --time=2:00:00'",
    )
    parser.add_argument(
        "--out", help="folder of all runs (default: runs/compare_<data>, with the settings that all share)"
    )
    _add_tuning(parser)
    parser.add_argument("--project", help="W&B project (default: WANDB_PROJECT, or the name of the folder)")
    parser.add_argument("--overwrite", action="store_true", help="start all runs anew and replace what is there")
    parser.add_trust()
    parser.add_argument("--no-report", action="store_true", help="make no report at the end")
    return parser


def _add_tuning(parser: OneLineParser) -> None:
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="tune each algorithm first and report it at its own best: loop.lr=0.01,0.02,0.05, or for one of them "
        "fedprox:loop.solver.proximal=0.1,1; several are combined",
    )
    parser.add_argument("--tuning-seeds", default="1000:1002", help="seeds of the tuning (default: 1000:1002)")
    parser.add_argument(
        "--validation-share",
        type=float,
        default=0.1,
        help="share of the training data that is held out to tune on (default: 0.1)",
    )


def main(arguments: list[str]) -> int:
    """Run everything that is not finished, and return 1 when a run failed (2 when the user can fix it)."""
    parser = make_parser()
    options, overrides = parser.parse_known_args(arguments)
    if options.ray and options.slurm is not None:
        raise configs.ConfigError("--ray and --slurm are two ways of the same: give one of them")
    if options.budget is not None:
        overrides = [*overrides, *jobs.parse_budget(options.budget)]
    folder, planned = _plan(options, overrides)
    num_jobs, threads = _shares(
        options.jobs, options.threads, len(planned), options.ray is not None or options.slurm is not None
    )
    axes = tuning.parse_grid(options.grid)
    if axes and options.slurm is not None:
        raise configs.ConfigError(
            "--grid needs the results of its trials, which --slurm does not wait for: leave one out"
        )
    tuning_seeds = jobs.parse_seeds(options.tuning_seeds)
    trials = tuning.trials(planned, axes, tuning_seeds, options.validation_share, _beside(folder)) if axes else []
    _check(parser, planned, axes)
    folder.mkdir(parents=True, exist_ok=True)
    project = options.project or os.environ.get("WANDB_PROJECT") or folder.resolve().name
    if options.slurm is not None:
        return _submit(folder, planned, options, threads, project)
    place = Place(address=options.ray, num_jobs=num_jobs, threads=threads, project=project)
    failed = _run(folder, planned, trials, axes, place, None if options.no_report else project)
    if trials:
        print(tuning.how_tuned(options.grid, options.validation_share, options.tuning_seeds, folder))
    if not failed:
        return 0
    return 2 if all(event.known for event in failed) else 1


def _beside(folder: Path) -> Path:
    """Return the folder of the trials."""
    return folder.with_name(f"{folder.name}_tuning")


def _run(
    folder: Path,
    planned: list[Job],
    trials: list[Job],
    axes: list[tuning.Axis],
    place: Place,
    report_to: str | None,
) -> list["Event"]:
    """Make the trials and the runs, conclude, and return what failed."""
    from fl_lightning.runs.locking import FolderLock

    failed: list[Event] = []
    with FolderLock(folder, "a comparison"):
        if trials:
            failed = _execute(trials, _beside(folder), place).failures
            planned = _at_their_best(planned, trials, axes, folder)
        progress = _execute(planned, folder, place)
    if progress.finished + progress.kept:
        _conclude(folder, report_to)
    return [*failed, *progress.failures]


def _conclude(folder: Path, project: str | None) -> None:
    """Report all runs below the folder where a project is given, and show the table of what they reached."""
    from rich.console import Console

    from fl_lightning.cli.report import publish, warn
    from fl_lightning.report.outcome import load, outcome_table

    try:
        outcome = load([folder], warn if project else lambda text: None)
    except ValueError:  # nothing to compare
        if project:
            raise
        return
    if project:
        publish(outcome, folder / "report", project if outcome.logged else None)
    Console(width=None if sys.stdout.isatty() else 100).print(outcome_table(outcome.comparison))


def _execute(planned: list[Job], folder: Path, place: Place) -> "ComparisonProgress":
    """Run jobs, show how far they are, and return what became of them."""
    from fl_lightning.cli.progress import ComparisonProgress

    with ComparisonProgress(len(planned)) as progress:
        pool, where = _pool(place)
        progress.console.print(
            f"{len(planned)} runs in {folder}{where}, {place.num_jobs} at a time with {place.threads} "
            f"thread{'s' * (place.threads > 1)} each",
            highlight=False,
        )
        for event in pool.run(planned):
            progress.show(event)
    progress.conclude()
    return progress


def _check(parser: OneLineParser, planned: list[Job], axes: list[tuning.Axis]) -> None:
    """Look for typos in the configs, the settings and the grid before anything is started."""
    known = [option.removeprefix("--") for option in parser._option_string_actions]
    for job in {job.algorithm: job for job in planned}.values():
        merged = configs.compose(job.configs)
        for settings in [(), *tuning.points(axes, job.algorithm)]:
            early.check(merged, [*job.overrides, *tuning.as_overrides(settings)], job.trusted, known)


def _at_their_best(planned: list[Job], tried: list[Job], axes: list[tuning.Axis], folder: Path) -> list[Job]:
    """Return the runs with the settings that did best on the held-out data, where any came to an end."""
    found = tuning.scores(tried, axes)
    write_durably(folder / "tuning.csv", tuning.table(found).encode())
    print("\n".join(tuning.conclusions(found, axes)))
    chosen = {algorithm: tuning.best(several) for algorithm, several in found.items()}
    return [
        replace(job, overrides=[*job.overrides, *tuning.as_overrides(score.settings)])
        for job in planned
        if (score := chosen[job.algorithm]) is not None
    ]


def _pool(place: Place) -> tuple["Pool", str]:
    """Return what runs the jobs, and where that is, in words."""
    environment = {"WANDB_PROJECT": place.project}
    if place.address is None:
        from fl_lightning.jobs.pool import Pool

        return Pool(place.num_jobs, place.threads, environment), ""
    from fl_lightning.jobs.pool import RayPool

    pool = RayPool(place.address, place.num_jobs, place.threads, environment)
    return pool, f" on {pool.num_nodes} node{'s' * (pool.num_nodes != 1)} of Ray"


def _submit(folder: Path, planned: list[Job], options: argparse.Namespace, threads: int, project: str) -> int:
    from fl_lightning.jobs import slurm

    array, report = slurm.write(
        folder, planned, shlex.split(options.slurm), options.jobs, threads, {"WANDB_PROJECT": project}
    )
    said = slurm.submit(array, None if options.no_report else report)
    print(f"{len(planned)} runs in {folder}, {said}")
    return 0


def _plan(options: argparse.Namespace, overrides: list[str]) -> tuple[Path, list[Job]]:
    if bool(options.configs) == bool(options.algorithms):
        raise configs.ConfigError("give either --config DATA with --algorithms, or --configs")
    if options.configs and options.config:
        raise configs.ConfigError("--configs are complete: --config goes with --algorithms")
    shared = options.config or (["digits.yaml"] if options.algorithms else [])
    algorithms = jobs.parse_algorithms(options.algorithms) if options.algorithms else []
    seeds = jobs.parse_seeds(options.seeds)
    folder, planned = jobs.plan(shared, algorithms, options.configs, seeds, options.out, overrides)
    if options.grid and not options.out:  # runs at their own best are not those at the configs' own settings
        folder = folder.with_name(f"{folder.name}_tuned")
        planned = [replace(job, run_dir=(folder / job.algorithm / f"seed_{job.seed}").as_posix()) for job in planned]
    return folder, [replace(job, overwrite=options.overwrite, trusted=options.trust) for job in planned]


def _shares(num_jobs: int | None, threads: int | None, num_runs: int, on_cluster: bool = False) -> tuple[int, int]:
    """Return how many runs go at once and the threads of each; the number of runs left to do plays no part in it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name, value in (("--jobs", num_jobs), ("--threads", threads)):
        if value is not None and value < 1:
            raise configs.ConfigError(f"{name} {value} must be at least 1")
    if on_cluster:  # which has a queue of its own
        return min(num_jobs or num_runs, num_runs), threads or 1
    num_jobs = min(num_jobs or cores, num_runs)
    return num_jobs, threads or max(1, cores // num_jobs)
