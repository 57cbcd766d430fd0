"""Reading the runs below some folders: what is whole is returned, what is not is named."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.runs import records
from fl_lightning.runs.identity import flat
from fl_lightning.runs.records import CLIENTS, CONFIG, METRICS, SUMMARY, Summary, Table

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
        """The config as dotted keys, without what tells runs of one algorithm apart."""
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
    together, foreign = _one_data_set(runs)
    kept, repeated = _once(together)
    return kept, problems + foreign + repeated


def _find(paths: Iterable[Path]) -> tuple[list[Path], list[Problem]]:
    """Return the run folders at and below the paths, and the paths that hold none."""
    folders: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if not path.is_dir():
            problems.append(Problem(path, "there is no such folder"))
            continue
        files = [file for name in _FILES for file in path.rglob(name)]
        found = sorted({file.parent for file in files if not _is_passed_over(file.relative_to(path).parent)})
        found = [folder for folder in found if _looks_like_a_run(folder)]
        if not found:
            problems.append(Problem(path, f"it holds no run (no {CONFIG} with a {METRICS} or {SUMMARY})"))
        folders += [folder for folder in found if folder not in folders]
    return folders, problems


def _is_passed_over(folder: Path) -> bool:
    """Whether a folder holds what W&B keeps, or something hidden, such as a run that is being replaced."""
    return any(part == "wandb" or part.startswith(".") for part in folder.parts)


def _looks_like_a_run(folder: Path) -> bool:
    return sum((folder / name).exists() for name in _FILES) >= 2 or (folder / METRICS).exists()


def load(folder: Path) -> Run:
    """Read one run.

    Raises:
        ValueError: It is unfinished, half-written or no run; the message says which.
    """
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
        raise ValueError(f"{SUMMARY} tells of {summary.rounds} rounds, {METRICS} has {rounds}")
    if summary.seed is None or summary.seed != config.get("seed"):
        raise ValueError(f"{SUMMARY} is of seed {summary.seed}, {CONFIG} of seed {config.get('seed')}")
    clients = records.read_clients(folder)
    return Run(folder=folder, seed=summary.seed, config=config, metrics=metrics, clients=clients, summary=summary)


def _data_key(run: Run) -> str:
    return json.dumps([run.config.get("data"), run.config.get("model")], sort_keys=True, default=str)


def _one_data_set(runs: list[Run]) -> tuple[list[Run], list[Problem]]:
    """Keep the data set (with its partition and model) that most runs have: others cannot be compared with them."""
    if not runs:
        return [], []
    common, _ = Counter(map(_data_key, runs)).most_common(1)[0]
    kept = [run for run in runs if _data_key(run) == common]
    problems = [
        Problem(run.folder, f"its data, partition or model ({run.data}) is not that of the other runs ({kept[0].data})")
        for run in runs
        if _data_key(run) != common
    ]
    return kept, problems


def _once(runs: list[Run]) -> tuple[list[Run], list[Problem]]:
    """Leave out a run that is there twice."""
    kept: dict[str, Run] = {}
    problems: list[Problem] = []
    for run in runs:
        key = json.dumps([run.algorithm, run.seed, run.settings], sort_keys=True, default=str)
        if key in kept:
            problems.append(Problem(run.folder, f"it is the same run as {kept[key].folder}"))
        else:
            kept[key] = run
    return list(kept.values()), problems
