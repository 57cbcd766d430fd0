"""``fl-lightning diagnose``: which objective each algorithm would really optimise, before anybody trains."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.config.compose import names_given
from fl_lightning.diagnosis import words
from fl_lightning.diagnosis.given_clients import ClientTable, read_clients
from fl_lightning.output import loading, only_planning

if TYPE_CHECKING:
    from fl_lightning.algorithms import Algorithm
    from fl_lightning.diagnosis.objective import Diagnosis
    from fl_lightning.parts.bases import Channel
    from fl_lightning.planning import Planner
    from fl_lightning.system import Clock
    from fl_lightning.types import Conditions, Vector

_ROUNDS, _STATIC_ROUNDS = 96, 16
_CONDITIONS_SEED = 0x5EED


def make_parser() -> OneLineParser:
    """Return the parser of the options that are diagnose's own."""
    parser = OneLineParser(
        prog="fl-lightning diagnose",
        usage="fl-lightning diagnose [RUN | --config FILE | --clients CSV] [options]",
        description="Show which objective each algorithm would really optimise on your clients, and recommend one. "
        "Nothing is trained and no data is loaded. Any key of the config can be overridden: --loop.lr 0.1. "
        "With the folder of a run, RUN: the objective of that run, with the factors of clipping that it measured.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", help=f"a file or a shipped config such as mnist.yaml (default: {configs.DEMO})")
    source.add_argument("--clients", metavar="CSV", help="columns num_steps, failure_rate and, optionally, weight")
    parser.add_argument("--algorithms", default="all", help="names and files, separated by commas (default: all)")
    parser.add_argument("--clients_per_round", metavar="K", help="number of draws, or share of the clients below 1")
    parser.add_argument("--picture", default="diagnosis.png", help="file to draw to (default: diagnosis.png)")
    parser.add_trust()
    return parser


def main(arguments: list[str]) -> int:
    """Diagnose a configuration, a table of clients, or a run that has begun."""
    if arguments and not arguments[0].startswith("-"):
        from fl_lightning.diagnosis import finished as diagnose_run

        return diagnose_run.main(arguments)
    parser = make_parser()
    options, overrides = parser.parse_known_args(arguments)
    for word in overrides[:1]:
        if not word.startswith("--loop.") and not word.startswith(("--data", "--seed")):
            parser.error(f"unrecognized arguments: {word}")
    names_given(options.algorithms)
    merged = configs.compose([] if options.clients else [options.config or configs.DEMO])
    early.check(merged, overrides, options.trust)
    if options.clients_per_round is not None:
        overrides += ["--loop.sampling.clients_per_round", options.clients_per_round]
    table = read_clients(options.clients) if options.clients else None
    with loading():
        import torch

    torch.set_num_threads(1)  # a handful of numbers: threads would only wait for each other
    _diagnose(options, merged, overrides, table)
    return 0


def _diagnose(
    options: argparse.Namespace, merged: dict[str, Any], overrides: list[str], table: ClientTable | None
) -> None:
    from rich.console import Console

    from fl_lightning.config import algorithms as parts
    from fl_lightning.diagnosis.dry_run import given_rounds
    from fl_lightning.diagnosis.objective import recommend
    from fl_lightning.figures.diagnosis import diagnosis_figure
    from fl_lightning.figures.style import draw

    console = Console(width=None if sys.stdout.isatty() else words.WIDE)
    outer, inner = parts.split_overrides(overrides)
    outer, of_averaging = parts.split_overrides(outer, parts.AVERAGING)
    if table is not None:
        planner, label_counts, notes = _planner_of_csv(table, parts.beside_clients(merged, outer, options.trust))
    else:
        planner, label_counts, notes = planner_of_config(merged, outer, options.trust)
    found, unknown = diagnoses(merged, planner, names_given(options.algorithms), inner, options.trust)
    title = options.clients or options.config or configs.DEMO
    heading = f"What each algorithm would really optimise: {title}, {len(planner.weights)} clients"
    settings = parts.averaging(merged, of_averaging, options.trust)
    choice = recommend(found, _kept(settings, planner))
    console.print(words.table_of(found, unknown, heading, console.width, choice))
    for note in notes:
        console.print(f"[dim]{note}[/]")
    for line in words.advice(found, choice, label_counts):
        console.print(line, highlight=False)
    console.print(words.averaged(choice), highlight=False)
    columns = [(each.num_steps, each.failure_rates) for each in given_rounds(planner)]
    steps, rates = (np.mean(rows, axis=0) for rows in zip(*columns, strict=True))
    missing = draw(lambda: diagnosis_figure(found, steps, rates, recommended=choice.name), Path(options.picture))
    console.print(missing or f"picture: {options.picture}", highlight=False, markup=False, soft_wrap=True)


def _kept(settings: Any, planner: "Planner") -> float:
    """Return the share of the variance that averaging over rounds keeps, where the loss has curvature 1."""
    from fl_lightning.diagnosis.dry_run import given_rounds

    rounds, averaging = settings.rounds, settings.averaging
    step = np.mean([(planner.weights * (1 - c.failure_rates)) @ c.num_steps for c in given_rounds(planner)])
    contraction = max(0.0, 1 - planner.learning_rate * float(step))
    return float(averaging.variance_factor(rounds, contraction)) if averaging else 1.0


def _planner_of_csv(table: ClientTable, loop: Any) -> tuple["Planner", Any, list[str]]:
    from fl_lightning.system import Clock
    from fl_lightning.types import Conditions

    rounds = min(_STATIC_ROUNDS, _num_rounds(len(table.weights)))
    conditions = [Conditions(table.num_steps, table.failure_rates)] * rounds
    clock = _clock(loop.clock or Clock(), conditions, table.weights, 0, float("nan"))
    return _planned(conditions, table.weights, loop.channel, clock, loop.lr), None, []


def planner_of_config(
    merged: dict[str, Any], overrides: list[str], trusted: list[str]
) -> tuple["Planner", Any, list[str]]:
    """Return a planner of the clients of a configuration, how many examples of each class they have, and notes.

    Its algorithm is FedAvg, for others to take its place; the examples are None where nobody knows them.
    """
    from fl_lightning.config import algorithms as parts
    from fl_lightning.data.partitions import expected_sizes
    from fl_lightning.engine.batches import steps_per_epoch
    from fl_lightning.planning import target_weights
    from fl_lightning.system import Clock

    settings = parts.environment(merged, overrides, trusted)
    loop, notes = settings.loop, []
    sizes, label_counts = expected_sizes(settings.data, settings.seed)
    if sizes is None:
        sizes = settings.data.load(settings.seed).sizes
        notes.append("The data was loaded, because nothing else tells how many examples each client has.")
    epoch = steps_per_epoch(sizes, loop.batch_size)
    conditions = [
        loop.schedule.configure_conditions(index, epoch, settings.seed + _CONDITIONS_SEED)
        for index in range(1, _num_rounds(len(sizes)) + 1)
    ]
    static = all(np.array_equal(vars(conditions[0])[name], vars(conditions[1])[name]) for name in vars(conditions[0]))
    conditions = conditions[:_STATIC_ROUNDS] if static else conditions
    weights = target_weights(loop.weights, sizes)
    clock = _clock(loop.clock or Clock(), conditions, weights, settings.seed, parts.model_bytes(merged, trusted))
    return _planned(conditions, weights, loop.channel, clock, loop.lr), label_counts, notes


def _planned(
    conditions: list["Conditions"], weights: "Vector", channel: "Channel", clock: "Clock", lr: float
) -> "Planner":
    from fl_lightning.algorithms import Algorithm, System
    from fl_lightning.diagnosis.dry_run import GivenConditions, planner_of

    system = System(schedule=GivenConditions(conditions), channel=channel, clock=clock)
    return planner_of(Algorithm(), system, weights, lr)


def _clock(clock: "Clock", conditions: list["Conditions"], weights: "Vector", seed: int, size: float) -> "Clock":
    """Return a clock that knows the clients and the size of the model, NaN for unknown."""
    from fl_lightning.system import Traffic
    from fl_lightning.types import Profiles

    def forecast() -> Iterator[Profiles]:
        for each in conditions:
            yield Profiles(conditions=each, weights=weights, accumulation=each.num_steps.astype(np.float64))

    clock.setup(len(weights), seed, forecast, Traffic(download=size, upload=size, model=size))
    return clock


def _num_rounds(num_clients: int) -> int:
    return int(np.clip(1_000_000 // num_clients, 4, _ROUNDS))


def diagnoses(
    merged: dict[str, Any], planner: "Planner", names: list[str], overrides: list[str], trusted: list[str]
) -> tuple[list["Diagnosis"], list[str]]:
    """Return what is known of each algorithm, and the names of those whose objective depends on the data."""
    from fl_lightning.config import algorithms as parts

    return diagnosed(parts.algorithms(merged, names, overrides, trusted), planner)


def diagnosed(algorithms: Iterable[tuple[str, "Algorithm"]], like: "Planner") -> tuple[list["Diagnosis"], list[str]]:
    """Return the same for algorithms that are made already, each with its name, on the clients of a planner."""
    from fl_lightning.diagnosis.dry_run import planner_of, typical_rounds
    from fl_lightning.diagnosis.needs import needs_of
    from fl_lightning.diagnosis.objective import diagnose

    found, unknown = [], []
    for name, algorithm in algorithms:
        planner = planner_of(algorithm, like.system, like.weights, like.learning_rate)
        with only_planning():
            rounds = typical_rounds(planner)
            needs = None if rounds is None else needs_of(planner)
        if rounds is None:
            unknown.append(name)
        else:
            found.append(diagnose(name, like.weights, rounds, needs))
    return found, unknown
