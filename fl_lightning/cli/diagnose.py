"""``fl-lightning diagnose``: which objective each algorithm would really optimise, before anybody trains."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.cli.main import OneLineParser, print_json
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.diagnosis.given_clients import ClientTable, read_clients
from fl_lightning.output import loading
from fl_lightning.runs.records import CONFIG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fl_lightning.planning import Planner
    from fl_lightning.types import Conditions


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
    parser.add_system()
    parser.add_argument("--algorithms", default="all", help="names and files, separated by commas (default: all)")
    parser.add_argument("--all", action="store_true", help="show all algorithms, not only those of the verdict")
    parser.add_argument("--clients_per_round", metavar="K", help="number of draws, or share of the clients below 1")
    parser.add_argument("--picture", default="diagnosis.png", help="file to draw to (default: diagnosis.png)")
    parser.add_trust()
    parser.add_json()
    return parser


def main(arguments: list[str]) -> int:
    """Diagnose a configuration, a table of clients, or a run that has begun."""
    if arguments and not arguments[0].startswith("-"):
        return _diagnose_run(arguments)
    parser = make_parser()
    options, overrides = parser.parse_known_args(arguments)
    for word in overrides[:1]:
        if not word.startswith("--loop.") and not word.startswith(("--data", "--seed")):
            parser.error(f"unrecognized arguments: {word}")
    configs.names_given(options.algorithms)
    if options.clients and options.system:
        parser.error("--system does not go with --clients, whose table gives T and q")
    merged = configs.compose([] if options.clients else [options.config or configs.DEMO], options.system)
    early.check(merged, overrides, options.trust)
    if options.clients_per_round is not None:
        overrides += ["--loop.sampling.clients_per_round", options.clients_per_round]
    table = read_clients(options.clients) if options.clients else None
    _diagnose(_console(), options, merged, overrides, table)
    return 0


def _console() -> "Console":
    """Load what is heavy, and return where to print."""
    with loading():
        import torch
        from rich.console import Console

        from fl_lightning.diagnosis.words import WIDE

    torch.set_num_threads(1)  # a handful of numbers: threads would only wait for each other
    return Console(width=None if sys.stdout.isatty() else WIDE)


def _diagnose_run(arguments: list[str]) -> int:
    """Show the objective of a run as it was planned and as what it measured makes it."""
    about = "``fl-lightning diagnose RUN``: the objective of a run that has begun, with the factors that it measured."
    parser = OneLineParser(prog="fl-lightning diagnose", description=about, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder of a run with a checkpoint, finished or not")
    parser.add_trust()
    options = parser.parse_args(arguments)
    folder = Path(options.run)
    if not (folder / CONFIG).is_file():
        raise configs.ConfigError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    merged = configs.compose([str(folder / CONFIG)])
    early.check(merged, [], options.trust)
    console = _console()
    from fl_lightning.config import algorithm_parts as parts
    from fl_lightning.diagnosis import systems, words
    from fl_lightning.diagnosis.objective import Recommendation

    environment = parts.environment(merged, [], options.trust)
    given = systems.planner_of_config(environment, parts.model_bytes(merged, options.trust))
    planner, label_counts, notes = given
    algorithm = parts.configured_algorithm(merged, [], options.trust)
    finished, factors, loaded = systems.measured(folder, algorithm, len(planner.weights))
    known = [(words.PLANNED, algorithm)] + ([] if factors is None else [(words.MEASURED, loaded)])
    found, unknown = systems.diagnosed(known, planner)
    heading = f"What this run really optimises: {folder}, {len(planner.weights)} clients, {finished} rounds"
    if found:
        console.print(words.table_of(found, unknown, heading, console.width, Recommendation(found[0], (), None)))
    else:
        console.print(f"{heading}\nThe objective depends on the data: the aggregator or the sampler is not linear.")
    for line in [*notes, *words.of_run(factors, found, label_counts)]:
        console.print(line, highlight=False)
    return 0


def _diagnose(
    console: "Console",
    options: argparse.Namespace,
    merged: dict[str, Any],
    overrides: list[str],
    table: ClientTable | None,
) -> None:
    from fl_lightning.config import algorithm_parts as parts
    from fl_lightning.diagnosis import systems, words
    from fl_lightning.diagnosis.dry_run import given_conditions
    from fl_lightning.diagnosis.objective import recommend
    from fl_lightning.figures.clients import diagnosis_figure
    from fl_lightning.figures.style import draw

    outer, inner = parts.split_overrides(overrides)
    outer, _ = parts.split_overrides(outer, parts.AVERAGING)
    _, of_averaging = parts.split_overrides(overrides, parts.AVERAGING)
    partition = None
    if table is not None:
        given = systems.planner_of_table(table, parts.beside_clients(merged, outer, options.trust))
    else:
        environment = parts.environment(merged, outer, options.trust)
        partition = getattr(environment.data, "partition", None)
        given = systems.planner_of_config(environment, parts.model_bytes(merged, options.trust))
    planner, label_counts, notes = given
    algorithms = list(parts.algorithms(merged, configs.names_given(options.algorithms), inner, options.trust))
    notes += systems.absence_notes(planner, algorithms[0][1].sampling.num_draws(len(planner.weights)))
    found, unknown = systems.diagnosed(algorithms, planner)
    title = options.clients or options.config or configs.DEMO
    title += f", system {options.system}" if options.system else ""
    heading = f"What each algorithm would really optimise: {title}, {len(planner.weights)} clients"
    settings = parts.averaging(merged, of_averaging, options.trust)
    rounds = given_conditions(planner).rounds
    choice = recommend(found, _kept(settings, planner, rounds))
    regime = systems.regime_of(algorithms, found, planner, label_counts, settings.rounds, partition)
    if options.json:
        document = words.document(found, unknown, choice, regime)
        print_json({"source": title, "clients": len(planner.weights), **document})
        return
    for line in [*words.verdict(found, choice, label_counts), *([] if regime is None else [regime.line])]:
        console.print(line, highlight=False)
    whole = options.all or options.algorithms != "all"
    shown = found if whole else words.few(found, choice)
    console.print("", words.table_of(shown, unknown if whole else (), heading, console.width, choice), sep="\n")
    if not whole:
        console.print(f"{len(found) + len(unknown) - len(shown)} other algorithms: --all", highlight=False)
    for note in notes:
        console.print(f"[dim]{note}[/]")
    for line in words.further(found, choice):
        console.print(line, highlight=False)
    steps = np.mean([each.num_steps for each in rounds], axis=0)
    rates = np.mean([each.failure_rates for each in rounds], axis=0)
    missing = draw(lambda: diagnosis_figure(found, steps, rates, recommended=choice.name), Path(options.picture))
    console.print(missing or f"picture: {options.picture}", highlight=False, markup=False, soft_wrap=True)


def _kept(settings: Any, planner: "Planner", rounds: "Sequence[Conditions]") -> float:
    """Return the share of the variance that averaging over rounds keeps, where the loss has curvature 1."""
    steps = [(planner.weights * (1 - each.failure_rates)) @ each.num_steps for each in rounds]
    contraction = max(0.0, 1 - planner.learning_rate * float(np.mean(steps)))
    return float(settings.averaging.variance_factor(settings.rounds, contraction)) if settings.averaging else 1.0
