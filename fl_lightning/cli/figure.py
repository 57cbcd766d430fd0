"""``fl-lightning figure``: the figures of the paper that need no training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import names_given
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


_SCENARIOS = {
    "toy-static": Scenario(
        title="Clients that differ: T from 1 to 30, q from 0.01 to 0.3",
        schedule={"num_steps": {"first": 1, "last": 30}, "failure_rates": {"first": 0.01, "last": 0.3}},
        rounds=10_000,
    ),
    "toy-homogeneous": Scenario(
        title="Clients that are alike: T = 15, q = 0.2", schedule={"num_steps": 15, "failure_rates": 0.2}, rounds=3000
    ),
    "toy-dynamic": Scenario(
        title="Clients that differ and change: a slow, unreliable half and a fast, reliable one",
        schedule={
            "groups": [
                {"share": 0.5, "num_steps": [1, 10], "failure_rates": [0.2, 0.4]},
                {"share": 0.5, "num_steps": [20, 30], "failure_rates": [0.0, 0.2]},
            ]
        },
        rounds=3000,
    ),
    "codesign": Scenario(
        title="Co-design: T of 2 or 3, and q that fits it",
        schedule={"num_steps": [2] * 20 + [3] * 10, "failure_rates": {"first": 0.01, "last": 0.3}},
        rounds=10_000,
        remedy="co-design",
    ),
}


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning figure", description=__doc__)
    parser.add_argument("name", choices=list(_SCENARIOS), metavar="NAME", help=", ".join(_SCENARIOS))
    parser.add_argument("--seeds", default="0:10", help="FIRST:END or numbers separated by commas (default: 0:10)")
    parser.add_argument("--rounds", type=int, help="rounds to play (default: depends on the figure)")
    parser.add_argument(
        "--out", default="figures", help="folder for NAME.png, NAME.svg and NAME.csv (default: figures)"
    )
    parser.add_argument(
        "--algorithm", metavar="NAME|FILE", help="what stands against FedAvg (default: FedACS, or the co-design)"
    )
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
    if options.algorithm is not None:
        names_given(options.algorithm)
    with loading():
        import fl_lightning.config.algorithms  # noqa: F401  heavy: torch, lightning
    planners = make_planners(scenario, options.algorithm, options.trust)
    _draw(options.name, scenario, planners, seeds, rounds, Path(options.out))
    return 0


def _draw(
    name: str, scenario: Scenario, planners: "dict[str, Planner]", seeds: list[int], rounds: int, out: Path
) -> None:
    from fl_lightning.data import Quadratic
    from fl_lightning.figures.convergence import convergence_figure, predict, simulate, write_csv
    from fl_lightning.figures.style import draw

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


def make_planners(
    scenario: Scenario, algorithm: str | None = None, trusted: Sequence[str] = ()
) -> "dict[str, Planner]":
    """Return FedAvg under four solvers and what stands against it, by label.

    Args:
        scenario: What the figure shows.
        algorithm: A shipped algorithm or a file, in place of the scenario's own remedy.
        trusted: Packages whose classes the file may name besides the known ones.
    """
    from fl_lightning import theory
    from fl_lightning.config import algorithms as parts

    environment = _environment(scenario.schedule).loop

    def planner(config: str, solver: dict[str, float], env: Any, lr: float, calibrated: bool) -> "Planner":
        loop: dict[str, Any] = {"solver": {"init_args": solver}}
        if not calibrated:  # FedAvg's own step is the one that others are calibrated to
            loop["calibration"] = {"init_args": {"scope": "none"}}
        merged = configs.merge(configs.compose([config]), {"loop": loop})
        return _planner(parts.algorithm(merged, []), env, lr)

    lr = environment.lr
    fedavg = {
        label: planner("toy_fedavg.yaml", solver, environment, lr, calibrated=False)
        for label, solver in _SOLVERS.items()
    }
    if algorithm is not None:
        return fedavg | _planner_of(algorithm, environment, trusted)
    if scenario.remedy == "FedACS":
        return fedavg | {"FedACS": planner("toy_fedacs.yaml", {}, environment, lr, calibrated=True)}
    steps = np.array(scenario.schedule["num_steps"])
    design = theory.codesign(steps, np.linspace(0.01, 0.3, len(steps)))
    fitted = _environment({"num_steps": steps.tolist(), "failure_rates": design.failure_rates.tolist()}).loop
    rate = lr * design.learning_rate_factor
    return fedavg | {"co-design": planner("toy_fedavg.yaml", {}, fitted, rate, calibrated=False)}


def _planner(algorithm: "Algorithm", environment: Any, lr: float) -> "Planner":
    from fl_lightning.algorithms import System
    from fl_lightning.planning import Planner

    ones = np.ones(_NUM_CLIENTS, dtype=np.int64)
    return Planner(
        algorithm=algorithm,
        system=System(schedule=environment.schedule, channel=environment.channel),
        weights=ones / _NUM_CLIENTS,
        learning_rate=lr,
        steps_per_epoch=ones,
    )


def _planner_of(name: str, environment: Any, trusted: Sequence[str]) -> "dict[str, Planner]":
    """Return the planner of an algorithm by its name or file, under its label."""
    from fl_lightning.config import algorithms as parts

    names = names_given(name)
    if len(names) != 1:
        raise configs.ConfigError(f"--algorithm {name} must be one name or one file")
    label, algorithm = next(parts.algorithms(configs.compose(["toy.yaml"]), names, [], trusted))
    _refuse_memory(label, algorithm)
    return {label: _planner(algorithm, environment, environment.lr)}


def _refuse_memory(label: str, algorithm: "Algorithm") -> None:
    """Refuse what the simulation leaves out: memory, steps between client and server, a sampler that asks or learns."""
    from fl_lightning.parts.traits import AggregatorTraits

    if algorithm.aggregator.traits != AggregatorTraits():
        raise configs.ConfigError(
            f"{label}: {type(algorithm.aggregator).__name__} does more than weight what arrives, which the figure does "
            "not simulate: use compare --config toy.yaml"
        )
    if algorithm.uploads:
        raise configs.ConfigError(
            f"{label}: {type(algorithm.uploads.steps[0]).__name__} changes updates on their way, which "
            "the figure does not simulate: use compare --config toy.yaml"
        )
    if algorithm.sampling.traits.asynchronous or not algorithm.sampling.traits.is_fixed:
        raise configs.ConfigError(
            f"{label}: its sampler asks clients or learns from them, which the figure does not simulate: "
            "use compare --config toy.yaml"
        )


def _environment(schedule: dict[str, Any]) -> Any:
    from fl_lightning.config import algorithms as parts

    merged = configs.compose(["toy.yaml"])
    merged["loop"]["schedule"]["init_args"] = schedule
    return parts.environment(merged, [])


def _print(
    scenario: Scenario, curves: "list[Curves]", plateaus: "list[Plateau]", seeds: list[int], rounds: int
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{scenario.title}: distance to the true optimum, {len(seeds)} seeds, {rounds} rounds",
        title_justify="left",
    )
    for column in ("", "last tenth of the rounds", "predicted", "average of all rounds", "over the seeds", "predicted"):
        table.add_column(column, justify="right" if column else "left")
    for curve, plateau in zip(curves, plateaus, strict=True):
        end, average = curve.distance[:, -max(1, rounds // 10) :], curve.average[:, -1]
        measured = [f"{value:.4f}" for value in (end.mean(), plateau.distance.mean(), average.mean())]
        spread = f"{average.min():.4f} to {average.max():.4f}"
        table.add_row(curve.label, *measured, spread, f"{plateau.bias.mean():.4f}")
    Console(width=120).print(table)
