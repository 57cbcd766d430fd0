"""Reading the runs below some folders: what is whole is returned, what is not is named."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fl_lightning.runs import records
from fl_lightning.runs.identity import flat
from fl_lightning.runs.records import CLIENTS, CONFIG, LOGS, METRICS, SUMMARY, Summary, Table

_FILES = (CONFIG, METRICS, CLIENTS, SUMMARY)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run."""

    folder: Path
    seed: int
    config: dict[str, object]
    metrics: Table
    clients: Table
    summary: Summary
    names: list[str] = field(default_factory=list)  # of the clients, where the data has them

    @property
    def algorithm(self) -> str:
        """What its algorithm is called."""
        return self.summary.algorithm

    @property
    def data(self) -> str:
        """What its data set is called."""
        return self.summary.data

    @property
    def settings(self) -> dict[str, object]:
        """The config as dotted keys, without what differs between runs of one algorithm."""
        return {
            key.removesuffix(".class_path"): value
            for key, value in flat(self.config).items()
            if value != {} and key not in ("seed", "run_dir") and not key.startswith("logger")
        }


@dataclass(frozen=True)
class Problem:
    """A folder that is left out, and why."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: left out: {self.reason}"


def load_all(paths: Iterable[Path]) -> tuple[list[Run], list[Problem]]:
    """Read all runs at and below the paths that belong together; say of each other folder why it is left out."""
    folders, problems = _find(paths)
    runs: list[Run] = []
    for folder in folders:
        try:
            runs.append(load(folder))
        except (ValueError, OSError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError) as error:  # noqa: PERF203
            problems.append(Problem(folder, " ".join(str(error).split()) or type(error).__name__))
    # Data, partition and model that most runs have: others cannot be compared with them.
    tasks = [_text(run.config.get("data"), run.config.get("model")) for run in runs]
    usual = max(tasks, key=tasks.count, default="")
    kept: dict[str, Run] = {}
    for run, task in zip(runs, tasks, strict=True):
        key = _text(run.algorithm, run.seed, run.settings)
        if task != usual:
            others = runs[tasks.index(usual)].data
            reason = f"its data, partition or model ({run.data}) is not that of the other runs ({others})"
            problems.append(Problem(run.folder, reason))
        elif key in kept:
            problems.append(Problem(run.folder, f"it is the same run as {kept[key].folder}"))
        else:
            kept[key] = run
    return list(kept.values()), problems


def _text(*values: object) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _find(paths: Iterable[Path]) -> tuple[list[Path], list[Problem]]:
    """Return the run folders at and below the paths, and the paths that hold none.

    What loggers keep is passed over, and what is hidden, such as a run that is being replaced.
    """
    folders: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if not path.is_dir():
            problems.append(Problem(path, "there is no such folder"))
            continue
        folders_below = {file.parent for name in _FILES for file in path.rglob(name)}
        found = [
            folder
            for folder in sorted(folders_below)
            if not any(part == "wandb" or part.startswith(".") for part in folder.relative_to(path).parts)
            and not any(each.name in LOGS and (each.parent / CONFIG).exists() for each in (folder, *folder.parents))
            and ((folder / METRICS).exists() or sum((folder / name).exists() for name in _FILES) >= 2)
        ]
        if not found:
            problems.append(Problem(path, f"it holds no run (no {CONFIG} with a {METRICS} or {SUMMARY})"))
        folders += [folder for folder in found if folder not in folders]
    return folders, problems


def load(folder: Path) -> Run:
    """Read one run, or raise ValueError if it is unfinished, half-written or none."""
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if SUMMARY in missing and METRICS not in missing:
        raise ValueError(f"the run is unfinished ({records.num_rounds(folder)} rounds, no {SUMMARY}): start it again")
    if missing:
        raise ValueError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    config = records.read_config(folder)
    summary = records.read_summary(folder)
    metrics = records.read_metrics(folder)
    rounds = len(metrics["round"])
    if summary.rounds != rounds:
        raise ValueError(f"{SUMMARY} has {summary.rounds} rounds, {METRICS} has {rounds}")
    if summary.seed is None or summary.seed != config.get("seed"):
        raise ValueError(f"{SUMMARY} is of seed {summary.seed}, {CONFIG} of seed {config.get('seed')}")
    return Run(
        folder=folder,
        seed=summary.seed,
        config=config,
        metrics=metrics,
        clients=records.read_clients(folder),
        summary=summary,
        names=records.read_names(folder),
    )
