"""A suite: data sets x systems x algorithms x seeds under a version, and what must not change within it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs.jobs import Job, parse_algorithms, parse_seeds
from fl_lightning.runs.identity import settings_hash

REFERENCE = "fedacs"
_KEYS = ("version", "data", "systems", "algorithms", "without", "seeds", "evaluations", "frozen")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What is run, and the hashes of what it is made of."""

    version: str
    data: Mapping[str, int]  # rounds of each data set
    systems: Sequence[str]
    algorithms: Sequence[str]
    without: Mapping[str, Sequence[str]]  # algorithms that a data set leaves out, because they take too long
    seeds: str
    evaluations: int  # in each run
    frozen: Mapping[str, str]  # sha256 by name, such as data/shakespeare


def read(name: str) -> Suite:
    """Return a suite by its name, or from a file."""
    known = configs.names("suites")
    path = Path(name) if Path(name).is_file() else configs.FOLDER / "suites" / f"{name}.yaml"
    if not path.is_file():
        hint = configs.suggestion(name, known)
        raise ConfigError(f"suite {name!r} is unknown{hint}: use a file, or one of {', '.join(known)}")
    found = configs.read(path)
    wrong = sorted(found.keys() ^ set(_KEYS))
    if wrong:
        raise ConfigError(f"{path}: {wrong[0]} is missing or unknown: a suite has {', '.join(_KEYS)}")
    tables = all(isinstance(found[key], dict) for key in ("data", "without", "frozen"))
    lists = all(isinstance(found[key], list) and found[key] for key in ("systems", "algorithms"))
    rounds = [*found["data"].values(), found["evaluations"]] if tables else [0]
    if not (tables and lists and all(type(each) is int and each > 0 for each in rounds)):
        raise ConfigError(
            f"{path}: data, without and frozen are tables, systems and algorithms lists, and rounds numbers from 1"
        )
    return Suite(**found)


def chosen(given: str | None, known: Sequence[str], option: str) -> list[str]:
    """Return those of a suite's names that a comma-separated text asks for; all by default.

    >>> chosen("b", ["a", "b"], "--data"), chosen(None, ["a", "b"], "--data")
    (['b'], ['a', 'b'])
    """
    names = list(known) if given is None else [name.strip() for name in given.split(",") if name.strip()]
    strange = [name for name in names if name not in known]
    if strange or not names:
        raise ConfigError(f"{option} {given!r} is not in the suite: use some of {', '.join(known)}")
    return names


def plan(suite: Suite, folder: Path, factor: float, trusted: Sequence[str]) -> list[Job]:
    """Return the jobs, seed by seed, so that what is done so far is always paired and speaks of every data set."""
    algorithms, planned = parse_algorithms(",".join(suite.algorithms)), []
    for seed in parse_seeds(suite.seeds):
        for data, system in product(suite.data, suite.systems):
            rounds = max(1, round(suite.data[data] * factor))
            settings = {
                "rounds": rounds,
                "evaluate_every": max(1, rounds // suite.evaluations),
                "evaluate_clients": rounds,
            }
            overrides = [*(f"--loop.{key}={value}" for key, value in settings.items()), "--logger=none"]
            for name in algorithms:
                label, cell = configs.label(Path(name).stem), f"{data}_{system}"
                if label in suite.without.get(data, ()):
                    continue
                job = Job(
                    algorithm=label,
                    data=data,
                    seed=seed,
                    configs=[f"{data}.yaml", name],
                    run_dir=(folder / cell / label / f"seed_{seed}").as_posix(),
                    overrides=overrides,
                    trusted=list(trusted),
                    system=system,
                    group=f"{data} on {system}: ",
                )
                planned.append(job)
    return planned


def hashes(suite: Suite) -> dict[str, str]:
    """Return the sha256 of the shipped configs that a suite is made of, comments apart."""
    known = configs.names("algorithms")
    names = ["base", *(f"data/{name}" for name in suite.data), *(f"systems/{name}" for name in suite.systems)]
    names += [f"algorithms/{name}" for name in suite.algorithms if name in known]
    return {name: settings_hash(configs.read(configs.FOLDER / f"{name}.yaml")) for name in names}


def changed(suite: Suite, found: Mapping[str, str]) -> list[str]:
    """Return what is not as the version has it, by name; algorithms that the version does not name are free.

    >>> lists = {"data": {}, "systems": [], "algorithms": [], "without": {}}
    >>> suite = Suite(version="v1", seeds="0:1", evaluations=1, frozen={"base": "ab"}, **lists)
    >>> changed(suite, {"base": "cd", "algorithms/mine": "ef"}), changed(suite, {"base": "ab"})
    (['base'], [])
    """
    return [name for name, sha in found.items() if suite.frozen.get(name, sha) != sha]
