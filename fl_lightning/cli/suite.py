"""``fl-lightning suite``: a frozen list of data sets, systems, algorithms and seeds, and its leaderboard."""

import argparse
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.cli.compare import Place, add_place, execute, exit_code
from fl_lightning.cli.main import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.jobs import suites
from fl_lightning.output import loading, write_durably
from fl_lightning.runs.locking import FolderLock

if TYPE_CHECKING:
    from fl_lightning.jobs.jobs import Job
    from fl_lightning.jobs.suites import Suite

_EPILOG = """examples:
  fl-lightning suite real --rounds-factor 0.1 --budget 90m
  fl-lightning suite real --algorithms mine.yaml --rows docs/results/real-v1.csv

Started again, it keeps the runs that are finished and makes the rest."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(
        prog="fl-lightning suite",
        description=__doc__,
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("suite", help=f"one of {', '.join(configs.names('suites'))}, or a file")
    add("--algorithms", help="names or files of your own, beside the reference fedacs (default: those of the suite)")
    add("--data", help="some of its data sets, separated by commas (default: all)")
    add("--systems", help="some of its systems, separated by commas (default: all)")
    add("--seeds", help="0:5 (the end left out) or 0,1,2 (default: those of the suite)")
    add(
        "--rounds-factor",
        type=float,
        default=1.0,
        metavar="F",
        help="make F times the rounds of the suite (default: 1)",
    )
    add("--budget", metavar="TIME", help="start no run after this much time: 90m, 2h, 600s; says what is left out")
    add("--rows", action="append", default=[], metavar="CSV", help="stored rows to stand beside, such as rows.csv")
    add("--out", help="folder of all runs (default: runs/suite_<version>, with the factor)")
    add_place(parser)
    add("--unfrozen", action="store_true", help="run although something is not as the version has it")
    add("--hashes", action="store_true", help="print the hashes of all it is made of, for the file of a new version")
    parser.add_trust()
    return parser


def main(arguments: list[str]) -> int:
    """Run what is not finished and write the leaderboard; return 1 when a run failed (2 if the user can fix it)."""
    options = make_parser().parse_args(arguments)
    suite = _chosen(options)
    if not 0 < options.rounds_factor <= 1000:
        raise configs.ConfigError(f"--rounds-factor {options.rounds_factor:g} must be above 0")
    seconds = _seconds(options.budget)
    if options.slurm is not None and (seconds is not None or options.ray):
        raise configs.ConfigError("--slurm goes with neither --ray nor --budget: give --slurm='--time=2:00:00'")
    factor = options.rounds_factor
    folder = Path(options.out or f"runs/suite_{suite.version}{f'_x{factor:g}' if factor != 1 else ''}")
    planned = suites.plan(suite, folder, factor, options.trust)
    for job in {(job.algorithm, job.group): job for job in planned}.values():
        early.check(job.merged, job.overrides, job.trusted)
    if options.hashes:
        print("\n".join(f"  {name}: {sha}" for name, sha in (suites.hashes(suite) | examples(suite)).items()))
        return 0
    other = _changed(suite, options.unfrozen)
    folder.mkdir(parents=True, exist_ok=True)
    place = Place.of(options, len(planned), suite.version)
    if options.slurm is not None:
        print(f"{place.submit(planned, folder, with_report=False)}; then the same command without --slurm")
        return 0
    with FolderLock(folder, "a suite"):
        made = execute(planned, folder, place, None if seconds is None else time.monotonic() + seconds)
    _say_left_out(planned, folder)
    version = f"{suite.version}{' (changed: ' + ', '.join(other) + ')' if other else ''}"
    _conclude(folder, version, [Path(name) for name in options.rows], factor)
    return exit_code(made)


def _chosen(options: argparse.Namespace) -> "Suite":
    suite = suites.read(options.suite)
    data = suites.chosen(options.data, list(suite.data), "--data")
    algorithms = list(suite.algorithms)
    if options.algorithms:
        algorithms = configs.names_given(options.algorithms)
        algorithms = [suites.REFERENCE, *(name for name in algorithms if name != suites.REFERENCE)]
    return replace(
        suite,
        data={name: suite.data[name] for name in data},
        systems=suites.chosen(options.systems, suite.systems, "--systems"),
        algorithms=algorithms,
        seeds=options.seeds or suite.seeds,
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found or not float(found[1]):
        raise configs.ConfigError(f"--budget {text!r} is not understood: use 600s, 90m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


def _changed(suite: "Suite", allowed: bool) -> list[str]:
    """Return what is not as the version has it; refuse it where that is not allowed, configs before data is loaded."""
    for found in (lambda: suites.hashes(suite), lambda: suites.hashes(suite) | examples(suite)):
        other = suites.changed(suite, found())
        if other and not allowed:
            raise configs.ConfigError(
                f"{', '.join(other)} {'is' if len(other) == 1 else 'are'} not as {suite.version} has it: restore it or "
                "use --unfrozen, whose results do not belong to this version"
            )
    return other


def examples(suite: "Suite") -> dict[str, str]:
    """Return a hash of the examples of each data set, and of what each system draws for 50 clients in two days."""
    with loading():
        import numpy as np

        from fl_lightning.config.parsing import instantiate
        from fl_lightning.data.digest import digest, hash_of

    found = {}
    for name in suite.data:
        settings = instantiate(configs.compose([f"{name}.yaml"]), ("seed", "data"))
        found[f"examples/{name}"] = digest(settings.data.load(settings.seed))
    for name in suite.systems:
        merged = configs.compose([f"{next(iter(suite.data))}.yaml"], name)
        loop = instantiate(merged, ("loop.schedule", "loop.clock")).loop
        values = []
        for index in range(1, 49):
            conditions = loop.schedule.configure_conditions(index, np.full(50, 10), 0)
            values += [conditions.num_steps, conditions.failure_rates]
            values += [] if loop.clock.availability is None else [loop.clock.availability(50, index, 0)]
        found[f"draws/{name}"] = hash_of(values)
    return found


def _say_left_out(planned: "list[Job]", folder: Path) -> None:
    missing = [job for job in planned if not (Path(job.run_dir) / "summary.json").is_file()]
    if missing:
        counted = Counter(f"{job.group}seed {job.seed}" for job in missing)
        named = ", ".join(f"{name} ({number} algorithms)" for name, number in list(counted.items())[:6])
        rest = f" and {len(counted) - 6} more" if len(counted) > 6 else ""
        number = f"{len(missing)} of {len(planned)} runs"
        print(f"left out: {number}: {named}{rest}; the same command makes them in {folder}")


def _conclude(folder: Path, version: str, stored: list[Path], factor: float) -> None:
    """Write rows and leaderboard of all finished runs below the folder, and a report of each data set and system."""
    from fl_lightning.cli.report import warn
    from fl_lightning.report import leaderboard
    from fl_lightning.report.outcome import load

    rows, problems = leaderboard.collect(folder)
    for problem in problems:
        warn(str(problem))
    if not rows:
        return
    leaderboard.write_rows(folder / "rows.csv", rows)
    rows = leaderboard.merged([row for path in stored for row in leaderboard.read_rows(path)], rows)
    made = leaderboard.tables(rows, suites.REFERENCE)
    pages = {}
    for table in made[1:]:
        if (folder / table.name).is_dir():
            load([folder / table.name], lambda text: None).write(folder / table.name / "report", figures=False)
            pages[table.name] = f"{table.name}/report/index.html"
    title = f"{version} at {factor:g} of its rounds" if factor != 1 else version
    write_durably(folder / "leaderboard.md", f"# {title}\n\n{leaderboard.to_markdown(made)}".encode())
    write_durably(folder / "leaderboard.html", leaderboard.to_html(title, made, pages).encode())
    print(f"{folder / 'leaderboard.html'}: {len(rows)} runs, rows in {folder / 'rows.csv'}\n\n{made[0].to_markdown()}")
