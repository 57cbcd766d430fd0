"""Deployments in one process, and the simulations that they must equal."""

import copy
from collections.abc import Callable
from pathlib import Path

import torch
import yaml

from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.flower.server_app import Options, prepare
from in_process_grid import InProcessGrid

NUM_CLIENTS, ROUNDS = 10, 4
OBSERVED = {
    "channel": {"class_path": "fl_lightning.callbacks.Observed"},
    "schedule": {"class_path": "fl_lightning.callbacks.ObservedConditions", "init_args": {"num_steps": 5}},
}


def config(algorithm: str, run_dir: Path, **loop) -> dict:
    """Digits on a few clients for a few rounds."""
    merged = configs.compose([f"digits_{algorithm}.yaml"])
    merged["data"]["init_args"]["partition"]["init_args"]["num_clients"] = NUM_CLIENTS
    merged["loop"] |= {"rounds": ROUNDS, "batch_size": 16} | copy.deepcopy(loop)
    merged["loop"]["engine"]["init_args"] = {"threads": 1}
    return merged | {"logger": "none", "run_dir": str(run_dir)}


def simulated(merged: dict, **engine) -> building.Run:
    """Simulate a config to the end."""
    merged = copy.deepcopy(merged)
    if engine:
        merged["loop"]["engine"] = {"class_path": "fl_lightning.engine.Replayed", "init_args": engine}
    run = building.build(building.parse(merged, []), "simulated")
    run.execute("never")
    return run


def node_file(merged: dict, folder: Path, **node) -> Path:
    """Write the config of a node that has the data of a config."""
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump({"data": merged["data"], "seed": merged["seed"], "node": {"threads": 1} | node}))
    return path


def made_grid(merged: dict, folder: Path, **node) -> InProcessGrid:
    """A grid with a node for each client, in an order of its own."""
    path = node_file(merged, folder, **node)
    return InProcessGrid({"config": str(path), "client": client} for client in reversed(range(NUM_CLIENTS)))


def deployed(grid: InProcessGrid, merged: dict, sleep: Callable[[float], None] | None = None, **limits) -> building.Run:
    """Make a config ready to run on the nodes of a grid."""
    limits = {"timeout": 5.0, "start_timeout": 5.0} | limits
    run = prepare(grid, merged, Options(name="deployed", num_clients=NUM_CLIENTS, **limits))
    if sleep is not None:
        run.loop.engine.questions._sleep = sleep
    return run


def weights(run: building.Run) -> torch.Tensor:
    return run.loop.state.weights
