"""``fl-lightning figure``: the figures of the paper that need no training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.cli.main import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.jobs.jobs import parse_seeds
from fl_lightning.output import loading

if TYPE_CHECKING:
    from fl_lightning.algorithms import Algorithm
    from fl_lightning.figures.convergence import Curves, Plateau
    from fl_lightning.planning import Planner

_SOLVERS: dict[str, dict[str, float]] = {
    "FedAvg, SGD": {},
    "FedAvg, proximal": {"proximal": 1.0},
    "FedAvg, decay": {"decay": 0.005},
    "FedAvg, momentum": {"momentum": 0.3},
}
_NUM_CLIENTS = 30  # of the toy


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a figure shows."""

    title: str
    schedule: dict[str, Any]  # arguments of the HeterogeneitySchedule
    rounds: int
    remedy: str = "FedACS"  # what stands against FedAvg


_SCENARIOS = {name: Scenario(**each) for name, each in configs.read(configs.FOLDER / "figures.yaml").items()}


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning figure", description=__doc__)
    add = parser.add_argument
    add("name", choices=list(_SCENARIOS), metavar="NAME", help=", ".join(_SCENARIOS))
    add("--seeds", default="0:10", help="FIRST:END or numbers separated by commas (default: 0:10)")
    add("--rounds", type=int, help="rounds to play (default: depends on the figure)")
    add("--out", default="figures", help="folder for NAME.png, NAME.svg and NAME.csv (default: figures)")
    add("--algorithm", metavar="NAME|FILE", help="what stands against FedAvg (default: FedACS, or the co-design)")
    parser.add_trust()
    return parser


def main(arguments: list[str]) -> int:
    """Simulate, draw and save."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    scenario = _SCENARIOS[options.name]
    rounds = scenario.rounds if options.rounds is None else options.rounds
    if rounds < 10:
        raise configs.ConfigError(f"--rounds={rounds} must be at least 10")
    if options.trust and options.algorithm is None:
        raise configs.ConfigError("--trust goes with --algorithm FILE: the shipped algorithms need nobody's package")
    seeds = parse_seeds(options.seeds)
    if options.algorithm is not None and len(configs.names_given(options.algorithm)) != 1:
        raise configs.ConfigError(f"--algorithm {options.algorithm} must be one name or one file")
    with loading():
        from fl_lightning.data import Quadratic
        from fl_lightning.figures.convergence import convergence_figure, predict, simulate, write_csv
        from fl_lightning.figures.style import draw

    planners = make_planners(scenario, options.algorithm, options.trust)
    name, out = options.name, Path(options.out)
    targets = np.stack([Quadratic().load(seed).targets for seed in seeds])
    curves = simulate(planners, targets, seeds, rounds)
    plateaus = [predict(planner, targets) for planner in planners.values()]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / f"{name}.csv", curves, plateaus)
    _print(scenario, curves, plateaus, seeds, rounds)
    pictures = [out / f"{name}.png", out / f"{name}.svg"]
    missing = draw(lambda: convergence_figure(scenario.title, curves, plateaus), *pictures)
    print(", ".join(str(path) for path in (*(() if missing else pictures), out / f"{name}.csv")))
    if missing:
        print(missing)
    return 0


def make_planners(
    scenario: Scenario, algorithm: str | None = None, trusted: Sequence[str] = ()
) -> "dict[str, Planner]":
    """Return FedAvg under four solvers and what stands against it, by label.

    That is a shipped algorithm or a file, whose classes may be of trusted packages, or else the scenario's own remedy.
    """
    from fl_lightning import theory
    from fl_lightning.config import algorithm_parts as parts

    environment = _environment(scenario.schedule)

    def fedavg(solver: dict[str, float], met: Any, factor: float = 1.0) -> "Planner":
        own = {"solver": {"init_args": solver}, "calibration": {"init_args": {"scope": "none"}}}  # the others' measure
        merged = configs.merge(configs.compose(["toy_fedavg.yaml"]), {"loop": own})
        return _planner(parts.configured_algorithm(merged, []), met, environment.lr * factor)

    planners = {label: fedavg(solver, environment) for label, solver in _SOLVERS.items()}
    if algorithm is not None:
        toy = configs.compose(["toy.yaml"])
        label, remedy = next(parts.algorithms(toy, configs.names_given(algorithm), [], trusted))
        _refuse_memory(label, remedy)
        return planners | {label: _planner(remedy, environment, environment.lr)}
    if scenario.remedy == "FedACS":
        fedacs = parts.configured_algorithm(configs.compose(["toy_fedacs.yaml"]), [])
        return planners | {"FedACS": _planner(fedacs, environment, environment.lr)}
    steps = np.array(scenario.schedule["num_steps"])
    design = theory.codesign(steps, np.linspace(0.01, 0.3, len(steps)))
    fitted = _environment({"num_steps": steps.tolist(), "failure_rates": design.failure_rates.tolist()})
    return planners | {"co-design": fedavg({}, fitted, design.learning_rate_factor)}


def _planner(algorithm: "Algorithm", environment: Any, lr: float) -> "Planner":
    from fl_lightning.algorithms import System
    from fl_lightning.diagnosis.dry_run import planner_of

    system = System(schedule=environment.schedule, channel=environment.channel)
    return planner_of(algorithm, system, np.full(_NUM_CLIENTS, 1 / _NUM_CLIENTS), lr)


def _refuse_memory(label: str, algorithm: "Algorithm") -> None:
    """Refuse what the simulation leaves out: memory, steps between client and server, a sampler that asks or learns."""
    from fl_lightning.parts.traits import AggregatorTraits

    if algorithm.aggregator.traits != AggregatorTraits():
        what = f"{type(algorithm.aggregator).__name__} does more than weight what arrives"
    elif algorithm.uploads:
        what = f"{type(algorithm.uploads.steps[0]).__name__} changes updates on their way"
    elif algorithm.sampling.traits.asynchronous or not algorithm.sampling.traits.is_fixed:
        what = "its sampler asks clients or learns from them"
    else:
        return
    raise configs.ConfigError(f"{label}: {what}, which the figure does not simulate: use compare --config toy.yaml")


def _environment(schedule: dict[str, Any]) -> Any:
    from fl_lightning.config import algorithm_parts as parts

    merged = configs.compose(["toy.yaml"])
    merged["loop"]["schedule"]["init_args"] = schedule
    return parts.environment(merged, []).loop


def _print(
    scenario: Scenario, curves: "list[Curves]", plateaus: "list[Plateau]", seeds: list[int], rounds: int
) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{scenario.title}: distance to the true optimum, {len(seeds)} seeds, {rounds} rounds"
    table = Table(title=title, title_justify="left")
    for column in ("", "last tenth of the rounds", "predicted", "average of all rounds", "over the seeds", "predicted"):
        table.add_column(column, justify="right" if column else "left")
    for curve, plateau in zip(curves, plateaus, strict=True):
        end, average = curve.distance[:, -max(1, rounds // 10) :], curve.average[:, -1]
        measured = [f"{value:.4f}" for value in (end.mean(), plateau.distance.mean(), average.mean())]
        spread = f"{average.min():.4f} to {average.max():.4f}"
        table.add_row(curve.label, *measured, spread, f"{plateau.bias.mean():.4f}")
    Console(width=120).print(table)
