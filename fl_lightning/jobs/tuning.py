"""Tuning in a comparison: each algorithm gets its own best settings, found on held-out data under seeds of their own.

Imports nothing heavy.
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs.jobs import Job
from fl_lightning.output import write_durably
from fl_lightning.runs import safe_yaml
from fl_lightning.runs.identity import in_words

Settings = tuple[tuple[str, str], ...]  # keys and values, as they are typed


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The values of one setting that are tried."""

    key: str
    values: tuple[str, ...]  # as they are typed
    algorithm: str | None = None  # that it is for; all by default


@dataclass(frozen=True, kw_only=True)
class Score:
    """How settings did on the held-out data."""

    settings: Settings
    mean: float  # of the monitored metric over the last fifth of the rounds and over seeds; NaN if a run failed
    maximised: bool = True
    name: str = ""  # of the metric


def parse_grid(texts: Sequence[str]) -> list[Axis]:
    """Return the axes of ``--grid KEY=VALUE,VALUE`` and ``--grid ALGORITHM:KEY=VALUE,VALUE``.

    >>> parse_grid(["loop.lr=0.01,0.1", "fedprox:loop.solver.proximal=[0.1, 1]"])[1]
    Axis(key='loop.solver.proximal', values=('0.1', '1'), algorithm='fedprox')
    """
    axes = []
    for text in texts:
        name, equals, listed = text.partition("=")
        algorithm, colon, key = name.rpartition(":")
        if listed.startswith("["):
            loaded = safe_yaml.load(listed, "--grid")
            values = tuple(value if isinstance(value, str) else json.dumps(value) for value in loaded)
        else:
            values = tuple(part.strip() for part in listed.split(",") if part.strip())
        if not equals or not key or not values or (colon and not algorithm):
            raise ConfigError(f"--grid {text!r} is not understood: use loop.lr=0.01,0.1 or fedprox:loop.lr=0.01,0.1")
        if len(set(values)) != len(values):
            raise ConfigError(f"--grid {text!r} has a value twice")
        axes.append(Axis(key=key.removeprefix("--"), values=values, algorithm=algorithm or None))
    return axes


def points(axes: Sequence[Axis], algorithm: str) -> Iterator[Settings]:
    """Yield each combination of settings for an algorithm.

    >>> list(points([Axis(key="a", values=("1", "2")), Axis(key="b", values=("3",), algorithm="x")], "x"))
    [(('a', '1'), ('b', '3')), (('a', '2'), ('b', '3'))]
    """
    own = [axis for axis in axes if axis.algorithm in (None, algorithm)]
    for values in itertools.product(*(axis.values for axis in own)):
        yield tuple((axis.key, value) for axis, value in zip(own, values, strict=True))


def trials(planned: Sequence[Job], axes: Sequence[Axis], seeds: Sequence[int], share: float, folder: Path) -> list[Job]:
    """Return the runs that tune: each algorithm with each combination of settings and each seed, on held-out data."""
    reported = {job.seed for job in planned}
    if reported & set(seeds):
        raise ConfigError(f"--tuning-seeds {min(reported & set(seeds))} is one of the reported --seeds: use others")
    unknown = {axis.algorithm for axis in axes if axis.algorithm} - {job.algorithm for job in planned}
    if unknown:
        raise ConfigError(f"--grid names {', '.join(sorted(map(str, unknown)))}, which is not compared")
    first = {job.algorithm: job for job in reversed(planned)}
    return [
        replace(
            job,
            seed=seed,
            run_dir=(folder / algorithm / _folder_name(settings) / f"seed_{seed}").as_posix(),
            overrides=[*job.overrides, *as_overrides(settings), "--validation", f"{share:g}", "--logger", "none"],
        )
        for seed in seeds
        for algorithm, job in reversed(first.items())
        for settings in points(axes, algorithm)
    ]


def _folder_name(settings: Settings) -> str:
    return in_words(dict(settings)) or "as_given"


def as_overrides(settings: Settings) -> list[str]:
    """Return settings as arguments of the command line."""
    return [word for key, value in settings for word in (f"--{key}", value)]


def scores(jobs: Sequence[Job], axes: Sequence[Axis]) -> dict[str, list[Score]]:
    """Return for each algorithm how its settings did, in the order of the grid."""
    folders: dict[tuple[str, str], list[Path]] = {}
    for job in jobs:
        folder = Path(job.run_dir)
        folders.setdefault((job.algorithm, folder.parent.name), []).append(folder)
    return {
        algorithm: [
            _score(settings, folders[algorithm, _folder_name(settings)]) for settings in points(axes, algorithm)
        ]
        for algorithm in dict.fromkeys(job.algorithm for job in jobs)
    }


def _score(settings: Settings, folders: Sequence[Path]) -> Score:
    from fl_lightning.runs.records import read_summary  # numpy

    try:
        found = [read_summary(folder) for folder in folders]
        value = mean(math.nan if summary.last is None else summary.last for summary in found)
    except (OSError, ValueError):
        return Score(settings=settings, mean=math.nan)
    return Score(settings=settings, mean=value, maximised=found[0].mode != "min", name=found[0].metric)


def best(several: Sequence[Score]) -> Score | None:
    """Return the score of the best settings, of equal ones the first; None if none came to an end.

    >>> one, two = Score(settings=(("a", "1"),), mean=0.5), Score(settings=(("a", "2"),), mean=0.7)
    >>> best([one, two]).settings, best([Score(settings=(), mean=math.nan)])
    ((('a', '2'),), None)
    """
    known = [score for score in several if not math.isnan(score.mean)]
    return max(known, key=lambda score: score.mean if score.maximised else -score.mean) if known else None


def at_an_edge(chosen: Score, axes: Sequence[Axis]) -> list[str]:
    """Return the keys whose best value is the first or last of three or more, so that a better one may lie outside."""
    ends = {axis.key: (axis.values[0], axis.values[-1]) for axis in axes if len(axis.values) > 2}
    return [key for key, value in chosen.settings if value in ends.get(key, ())]


def at_their_best(planned: Sequence[Job], tried: Sequence[Job], axes: Sequence[Axis], folder: Path) -> list[Job]:
    """Return the runs with the settings that did best on the held-out data, where any came to an end."""
    found = scores(tried, axes)
    write_durably(folder / "tuning.csv", _table(found).encode())
    for algorithm, several in found.items():
        print(f"{algorithm}: {_conclusion(best(several), axes)}")
    chosen = {algorithm: best(several) for algorithm, several in found.items()}
    return [
        replace(job, overrides=[*job.overrides, *as_overrides(score.settings)])
        for job in planned
        if (score := chosen[job.algorithm]) is not None
    ]


def _table(found: Mapping[str, Sequence[Score]]) -> str:
    keys = list(dict.fromkeys(key for several in found.values() for score in several for key, _ in score.settings))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["algorithm", *keys, "validation", "chosen"])
    for algorithm, several in found.items():
        for score in several:
            given = dict(score.settings)
            value = "" if math.isnan(score.mean) else repr(score.mean)
            writer.writerow([algorithm, *(given.get(key, "") for key in keys), value, int(score is best(several))])
    return text.getvalue()


def _conclusion(chosen: Score | None, axes: Sequence[Axis]) -> str:
    if chosen is None:
        return "no settings of the grid came to an end"
    words = ", ".join(f"{key}={value}" for key, value in chosen.settings) or "nothing to tune"
    edges = at_an_edge(chosen, axes)
    more = f"; {', '.join(edges)} is at an end of the grid: try values beyond it" if edges else ""
    return f"{words} (validation {chosen.name} {chosen.mean:.4g}){more}"
