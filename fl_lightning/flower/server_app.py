"""The ServerApp: the federated loop as it is, with nodes that train."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_lightning.aggregators.secure import sum_of
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.engine import FlowerEngine, Limits
from fl_lightning.flower.nodes import NodesData, Questions, Roster
from fl_lightning.flower.secure_server import SecureTraining
from fl_lightning.flower.task import Task, check_deployable
from fl_lightning.runs.records import CHECKPOINTS
from fl_lightning.runs.storage import load_latest

CONFIG = "config.yaml"  # in the app

app = ServerApp()


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``[tool.flwr.app.config]`` of an app says."""

    name: str  # of the run
    num_clients: int
    limits: Limits
    start_timeout: float = 600.0
    min_clients: int = 0  # with which a run is resumed when the time is up; 0: more than half of them
    trust: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ConfigError(f"num-clients={self.num_clients} must be at least 1")
        if not 0 <= self.min_clients <= self.num_clients:
            raise ConfigError(f"min-clients={self.min_clients} must be from 0 to num-clients={self.num_clients}")
        if not 0 < self.start_timeout < float("inf"):
            raise ConfigError(f"start-timeout={self.start_timeout} must be a positive number of seconds")


def read_options(run_config: Mapping[str, bool | bytes | float | int | str]) -> Options:
    """Return the options of an app.

    >>> read_options({"name": "digits", "num-clients": 4, "timeout": 30, "max-steps": 0}).limits
    Limits(timeout=30.0, max_steps=None)
    """
    try:
        max_steps = int(run_config.get("max-steps", 0))
        return Options(
            name=str(run_config["name"]),
            num_clients=int(run_config["num-clients"]),
            limits=Limits(timeout=float(run_config.get("timeout", 60.0)), max_steps=max_steps or None),
            start_timeout=float(run_config.get("start-timeout", 600.0)),
            min_clients=int(run_config.get("min-clients", 0)),
            trust=tuple(filter(None, str(run_config.get("trust", "")).split(","))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the app's config is not one of fl-lightning deploy: {error}") from None


def stored_sizes(run_dir: Path) -> list[int]:
    """Return how many examples each client had in the run that a folder holds; nothing if it holds none."""
    try:
        checkpoint, _ = load_latest(run_dir / CHECKPOINTS)
        sizes = {} if checkpoint is None else checkpoint["loop"]["parts"]["engine"]["sizes"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # what is wrong with it is said when the run begins
    found = next(iter(sizes.values()), []) if isinstance(sizes, dict) else sizes
    return [int(size) for size in found]


def prepare(grid: Grid, merged: dict[str, Any], options: Options) -> building.Run:
    """Return a run whose clients are nodes.

    Args:
        grid: Flower's connection to the nodes.
        merged: The configuration.
        options: Of the app.
    """
    settings = building.parse(merged, [], options.trust)
    # Flower ends an app without any warning: what is not saved after a round is lost.
    settings.checkpoint.every_n_rounds, settings.checkpoint.min_seconds = 1, 0.0
    run = building.build(settings, options.name)
    check_deployable(run.loop, options.limits.max_steps)
    stored = stored_sizes(run.run_dir)
    roster = Roster(grid, options.num_clients, stored)
    evaluation = run.loop.evaluate_clients
    task = Task(yaml.safe_load(run.config), 0.0 if evaluation is None else evaluation.held_out)
    questions, hidden = Questions(grid, roster, options.limits.timeout), sum_of(run.loop.algorithm.aggregator)
    sums = None if hidden is None else SecureTraining(questions, hidden)
    minimum = (options.min_clients or options.num_clients // 2 + 1) if stored else None
    engine = FlowerEngine(questions, task, options.limits, run.loop.engine, sums)
    return building.elsewhere(run, engine, NodesData(run.data, roster, options.start_timeout, minimum))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app's configuration, or resume it in its folder."""
    from flwr.common.config import get_project_dir

    run = grid.run
    folder = Path(get_project_dir(run.fab_id, run.fab_version, run.fab_hash))
    options = read_options(context.run_config)
    deployed = prepare(grid, configs.read(folder / CONFIG), options)
    outcome = deployed.execute("auto")
    print(f"{deployed.run_dir}: {outcome.value}", flush=True)
