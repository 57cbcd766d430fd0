"""Runs by the command line's own parts, and what they leave behind, without measured times."""

import csv
import json
from pathlib import Path

import torch

from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.runs.storage import checkpoints, read_checkpoint

TIMED = {"wall_time", "training_seconds", "seconds", "digest"}  # the last covers the others
SMALL = {
    "digits": [
        "--data.partition.num_clients=10",
        "--loop.batch_size=8",
        "--loop.schedule.groups=[{share: 0.5, num_steps: [1, 3], failure_rates: [0.4, 0.5]},"
        " {share: 0.5, num_steps: [3, 5], failure_rates: [0.0, 0.1]}]",
    ],
    "toy": [],
}


def arguments(name: str, run_dir: Path, rounds: int, *more: str) -> list[str]:
    """Return the command line of a small run that saves after every round."""
    small = SMALL[name.partition("_")[0]]
    settings = [f"--run_dir={run_dir}", f"--loop.rounds={rounds}", "--logger=none", "--checkpoint.min_seconds=0"]
    return ["--config", f"{name}.yaml", *small, *settings, *more]


def make_run(name: str, run_dir: Path, rounds: int, *more: str) -> building.Run:
    settings = building.parse(configs.compose([f"{name}.yaml"]), arguments(name, run_dir, rounds, *more)[2:])
    return building.build(settings, name)


def content_of(run_dir: Path) -> dict:
    """Return all that a run left behind, as plain values that can be compared exactly."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = [{name: cell for name, cell in row.items() if name not in TIMED} for row in csv.DictReader(file)]
    summary = json.loads((run_dir / "summary.json").read_text())
    model = torch.load(run_dir / "model.ckpt", weights_only=True)
    _, last = checkpoints(run_dir / "checkpoints")[-1]
    return {
        "metrics": rows,
        "summary": {name: value for name, value in summary.items() if name not in TIMED},
        "clients": (run_dir / "clients.csv").read_text(),
        "model": plain(model["state_dict"]),
        "checkpoint": plain(read_checkpoint(last)["loop"]),
    }


def plain(tree):
    """Return a tree with tensors as bytes, so that equal means identical, NaN and signs of zero included."""
    if isinstance(tree, dict):
        if {"names", "cells"} <= tree.keys():  # a table of rounds
            kept = [place for place, name in enumerate(tree["names"]) if name not in TIMED]
            tree = {**tree, "cells": tree["cells"][:, kept]}
        return {key: plain(value) for key, value in tree.items() if key not in TIMED}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tuple(tree.shape), tree.numpy().tobytes()
    return repr(tree)
