"""``fl-lightning compare``: algorithms x seeds on one data set, in parallel, paired by seed, and a report of it."""

import argparse
import contextlib
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.cli.main import OneLineParser, print_json
from fl_lightning.cli.progress import ComparisonProgress, described
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.jobs import jobs, tuning
from fl_lightning.jobs.jobs import Job
from fl_lightning.runs.locking import FolderLock

if TYPE_CHECKING:
    from fl_lightning.jobs.pool import Pool

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

    ray: str | None  # address of a cluster
    slurm: str | None  # options of sbatch
    num_jobs: int  # at the same time
    threads: int  # of each
    project: str  # of W&B

    @classmethod
    def of(cls, options: argparse.Namespace, num_runs: int, project: str) -> "Place":
        """Return what the options of :func:`add_place` mean."""
        on_cluster = options.ray is not None or options.slurm is not None
        num_jobs, threads = shares(options.jobs, options.threads, num_runs, on_cluster)
        return cls(ray=options.ray, slurm=options.slurm, num_jobs=num_jobs, threads=threads, project=project)

    def pool(self) -> tuple["Pool", str]:
        """Return what runs the jobs, and where that is, in words."""
        from fl_lightning.jobs import pool

        environment = {"WANDB_PROJECT": self.project}
        if self.ray is None:
            return pool.Pool(self.num_jobs, self.threads, environment), ""
        made = pool.RayPool(self.ray, self.num_jobs, self.threads, environment)
        return made, f" on {made.num_nodes} node{'s' * (made.num_nodes != 1)} of Ray"

    def submit(self, planned: list[Job], folder: Path, with_report: bool) -> str:
        """Hand the jobs over to Slurm, and return what the user should know."""
        from fl_lightning.jobs import slurm

        environment, wanted = {"WANDB_PROJECT": self.project}, shlex.split(self.slurm or "")
        array, report = slurm.write(folder, planned, wanted, self.num_jobs, self.threads, environment)
        return f"{len(planned)} runs in {folder}, {slurm.submit(array, report if with_report else None)}"


def make_parser() -> OneLineParser:
    """Return the parser of the options that are compare's own."""
    parser = OneLineParser(
        prog="fl-lightning compare",
        description=__doc__,
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", action="append", default=[], help="what all runs share: digits.yaml, mnist.yaml, ...")
    add("--algorithms", help="names or files, separated by commas, or all")
    add("--configs", nargs="+", default=[], help="complete configs to compare, instead of the two above")
    parser.add_system()
    add("--seeds", default="0:3", help="0:5 (the end left out) or 0,1,2 (default: 0:3)")
    add("--budget", help="what each run may cost, such as synchronous_time=500 or local_steps=9000,uplink_bytes=1e8")
    add_place(parser)
    add("--out", help="folder of all runs (default: runs/compare_<data>, with the settings that all share)")
    _add_tuning(parser)
    add("--project", help="W&B project (default: WANDB_PROJECT, or the name of the folder)")
    add("--overwrite", action="store_true", help="start all runs anew and replace what is there")
    parser.add_trust()
    add("--no-report", action="store_true", help="make no report at the end")
    parser.add_json()
    return parser


def add_place(parser: OneLineParser) -> None:
    """Add the options that say where runs are made."""
    add = parser.add_argument
    add("--jobs", type=int, help="runs at the same time (default: one for each core)")
    add("--threads", type=int, help="threads of each run (default: cores / jobs; 1 on a cluster)")
    add("--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, or HOST:PORT of its head")
    add(
        "--slurm",
        nargs="?",
        const="",
        metavar="OPTIONS",
        help="write and submit a Slurm job array; its options as one text: --slurm='--partition=long --time=2:00:00'",
    )


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
    with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
        document, code = _compare(parser, options, overrides)
    if options.json:
        print_json(document)
    return code


def _compare(parser: OneLineParser, options: argparse.Namespace, overrides: list[str]) -> tuple[dict[str, object], int]:
    """Return what was made, for programs, and the exit code."""
    folder, planned = _plan(options, overrides)
    project = options.project or os.environ.get("WANDB_PROJECT") or folder.resolve().name
    place = Place.of(options, len(planned), project)
    axes = tuning.parse_grid(options.grid)
    seeds = jobs.parse_seeds(options.tuning_seeds)
    beside = folder.with_name(f"{folder.name}_tuning")
    trials = tuning.trials(planned, axes, seeds, options.validation_share, beside) if axes else []
    _check(parser, planned, axes)
    folder.mkdir(parents=True, exist_ok=True)
    if options.slurm is not None:
        print(place.submit(planned, folder, with_report=not options.no_report))
        return {"folder": str(folder), "runs": [described(job, "submitted", "") for job in planned]}, 0
    with FolderLock(folder, "a comparison"):
        tried = [execute(trials, beside, place)] if trials else []
        if trials:
            planned = tuning.at_their_best(planned, trials, axes, folder)
        made = execute(planned, folder, place)
    results: dict[str, object] = {"metric": None, "reference": None, "tables": {}}
    if made.finished + made.kept:
        results |= _conclude(folder, None if options.no_report else project)
    if trials:
        held_out = f"{options.validation_share:.0%} of the training data, held out, under seeds {options.tuning_seeds}"
        found = f"tuned on {held_out}: {folder / 'tuning.csv'}"
        print(f"Each algorithm is at its own best of {'; '.join(options.grid)}, {found}")
    runs = {"runs": made.runs, "trials": [run for each in tried for run in each.runs]}
    return {"folder": str(folder), **results, **runs}, exit_code(*tried, made)


def _conclude(folder: Path, project: str | None) -> dict[str, object]:
    """Report all runs below the folder where a project is given, show what they reached, return it for programs."""
    from rich.console import Console

    from fl_lightning.cli.report import as_document, publish, warn
    from fl_lightning.config.methods import methods
    from fl_lightning.report.outcome import load, outcome_table

    try:
        outcome = load([folder], warn if project else lambda text: None)
    except ValueError:  # nothing to compare
        if project:
            raise
        return {}
    if project:
        publish(outcome, folder / "report", project if outcome.logged else None)
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(outcome_table(outcome.comparison))
    console.print(methods().to_cite(entry.name for entry in outcome.comparison.entries), highlight=False, markup=False)
    return as_document(outcome.comparison)


def execute(planned: list[Job], folder: Path, place: Place, until: float | None = None) -> ComparisonProgress:
    """Make the runs that are not finished, and show how far they are; none begins after ``until`` of the clock."""
    progress = ComparisonProgress(len(planned))
    with progress.bars:
        pool, where = place.pool()
        threads = f"{place.threads} thread{'s' * (place.threads > 1)} each"
        text = f"{len(planned)} runs in {folder}{where}, {place.num_jobs} at a time with {threads}"
        progress.console.print(text, highlight=False)
        try:
            for event in pool.run(planned):
                progress.show(event)
                if until is not None and time.monotonic() > until:
                    pool.enough = True
        except KeyboardInterrupt:
            progress.bars.stop()
            progress.interrupted(folder)
            raise
    progress.conclude()
    return progress


def exit_code(*made: ComparisonProgress) -> int:
    """Return 0, or where runs failed 1 (2 when the user can fix all of it)."""
    failed = [event for each in made for event in each.failures]
    return (2 if all(event.known for event in failed) else 1) if failed else 0


def _check(parser: OneLineParser, planned: list[Job], axes: list[tuning.Axis]) -> None:
    """Look for typos in the configs, the settings and the grid before anything is started."""
    known = [option.removeprefix("--") for option in parser._option_string_actions]
    for job in {job.algorithm: job for job in planned}.values():
        merged = job.merged
        for settings in [(), *tuning.points(axes, job.algorithm)]:
            early.check(merged, [*job.overrides, *tuning.as_overrides(settings)], job.trusted, known)


def _plan(options: argparse.Namespace, overrides: list[str]) -> tuple[Path, list[Job]]:
    if options.ray and options.slurm is not None:
        raise configs.ConfigError("--ray and --slurm are two ways of the same: give one of them")
    if options.grid and options.slurm is not None:
        raise configs.ConfigError(
            "--grid needs the results of its trials, which --slurm does not wait for: leave one out"
        )
    if bool(options.configs) == bool(options.algorithms):
        raise configs.ConfigError("give either --config DATA with --algorithms, or --configs")
    if options.configs and options.config:
        raise configs.ConfigError("--configs are complete: --config goes with --algorithms")
    shared = options.config or (["digits.yaml"] if options.algorithms else [])
    algorithms = jobs.parse_algorithms(options.algorithms) if options.algorithms else []
    seeds = jobs.parse_seeds(options.seeds)
    if options.budget is not None:
        overrides = [*overrides, *jobs.parse_budget(options.budget)]
    folder, planned = jobs.plan(shared, algorithms, options.configs, seeds, options.out, overrides, options.system)
    if options.grid and not options.out:  # runs at their own best are not those at the configs' own settings
        folder = folder.with_name(f"{folder.name}_tuned")
        planned = [replace(job, run_dir=(folder / job.algorithm / f"seed_{job.seed}").as_posix()) for job in planned]
    return folder, [replace(job, overwrite=options.overwrite, trusted=options.trust) for job in planned]


def shares(num_jobs: int | None, threads: int | None, num_runs: int, on_cluster: bool = False) -> tuple[int, int]:
    """Return how many runs go at once and the threads of each; the number of runs left to do plays no part in it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name, value in (("--jobs", num_jobs), ("--threads", threads)):
        if value is not None and value < 1:
            raise configs.ConfigError(f"{name} {value} must be at least 1")
    if on_cluster:  # which has a queue of its own
        return min(num_jobs or num_runs, num_runs), threads or 1
    num_jobs = min(num_jobs or cores, num_runs)
    return num_jobs, threads or max(1, cores // num_jobs)
