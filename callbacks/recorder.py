"""RunRecorder: the files a run leaves behind."""

import csv
import json
import math
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fl_lightning.torchvision_guard  # noqa: F401  isort: skip
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from fl_lightning.types import RoundResult

COLUMNS = (
    "round",
    "test_accuracy",
    "test_loss",
    "train_loss",
    "local_steps",
    "computation_time",
    "round_time",
    "wall_time",
    "num_sampled",
    "num_delivered",
    "learning_rate",
    "step_length",
    "chi2",
)
_PACKAGES = ("fl-lightning", "torch", "lightning", "torchmetrics", "numpy", "wandb")


class RunRecorder(Callback):
    """Writes ``metrics.csv`` (a row each round), ``clients.csv``, ``summary.json`` and ``model.ckpt`` into a folder.

    Args:
        run_dir: The folder; made if it is not there.
        target_accuracy: The accuracy whose first crossing the summary reports.
        labels: Names that the summary carries along, such as data set and algorithm.
    """

    def __init__(
        self, run_dir: str, target_accuracy: float | None = None, labels: dict[str, str] | None = None
    ) -> None:
        self.run_dir = Path(run_dir)
        self.target_accuracy, self.labels = target_accuracy, labels or {}
        self._columns: list[str] = list(COLUMNS)
        self._class_accuracy: list[float] = []
        self._clients: dict[str, torch.Tensor] = {}

    def on_federation_start(self, loop: Any) -> None:
        """Start a new metrics file, or cut an earlier one back to the round that is resumed."""
        self._began = time.perf_counter()
        if not self._clients:
            zeros = torch.zeros(len(loop.client_weights), dtype=torch.float64)
            names = ("expected_draws", "draws", "deliveries", "effective_weight", "num_steps", "failure_rate")
            self._clients = {name: zeros.clone() for name in names}
        if loop.fabric.global_rank:
            return
        self.run_dir.mkdir(parents=True, exist_ok=True)
        rows = [row for row in read_metrics(self.path) if row["round"] <= loop.round_index] if loop.round_index else []
        extra = [name for row in rows[:1] for name in row if name not in self._columns]
        self._columns += extra
        self._rewrite(rows)

    @property
    def path(self) -> Path:
        """The metrics file."""
        return self.run_dir / "metrics.csv"

    def on_round_end(self, loop: Any, result: RoundResult) -> None:
        """Append the round."""
        plan, row = result.plan, result.metrics
        for name, values in (
            ("expected_draws", plan.cohort.probabilities * plan.cohort.num_draws),
            ("draws", plan.cohort.counts),
            ("deliveries", result.delivered),
            ("effective_weight", plan.effective_weights),
            ("num_steps", plan.profiles.num_steps),
            ("failure_rate", plan.profiles.failure_rates),
        ):
            self._clients[name] += torch.from_numpy(np.asarray(values, dtype=np.float64))
        if len(result.class_accuracy):
            self._class_accuracy = result.class_accuracy.tolist()
        if loop.fabric.global_rank:
            return
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite(read_metrics(self.path))
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([_cell(row.get(name)) for name in self._columns])

    def _rewrite(self, rows: list[dict[str, float]]) -> None:
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows([_cell(row.get(name)) for name in self._columns] for row in rows)
        os.replace(temporary, self.path)

    def on_federation_end(self, loop: Any) -> None:
        """Write what is known at the end."""
        if loop.fabric.global_rank:
            return
        self._write_clients(loop)
        summary = summarise(read_metrics(self.path), self.target_accuracy)
        summary |= self.labels | {
            "seed": loop.seed,
            "per_class_accuracy": self._class_accuracy,
            "versions": installed_versions(),
            "seconds": round(time.perf_counter() - self._began, 3),
        }
        (self.run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        save_weights(loop.module, self.run_dir / "model.ckpt")

    def _write_clients(self, loop: Any) -> None:
        """Write one row for each client: its weight, its data, its mean conditions, and how it took part."""
        num_rounds = max(1, loop.round_index)
        means = {name: self._clients[name].numpy() / num_rounds for name in self._clients}
        totals = {name: self._clients[name].numpy() for name in ("expected_draws", "draws", "deliveries")}
        columns = {"client": range(len(loop.client_weights)), "size": loop.federation.sizes}
        columns |= {"weight": loop.client_weights} | means | totals
        with (self.run_dir / "clients.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums over the rounds."""
        return {"clients": self._clients, "class_accuracy": self._class_accuracy}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the sums back."""
        self._clients, self._class_accuracy = dict(state_dict["clients"]), list(state_dict["class_accuracy"])


def _cell(value: float | None) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else repr(value)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the rows of a metrics file as numbers; empty cells are left out."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [
            {name: float(value) if name != "round" else int(value) for name, value in row.items() if value}
            for row in csv.DictReader(file)
        ]


def summarise(rows: list[dict[str, float]], target_accuracy: float | None) -> dict[str, Any]:
    """Return final and best accuracy, and what it took to reach the target for the first time (None: never).

    >>> rows = [{"round": 1, "test_accuracy": 0.5, "local_steps": 10.0}, {"round": 2, "test_accuracy": 0.8}]
    >>> summarise(rows, 0.5)["rounds_to_target"], summarise(rows, 0.9)["rounds_to_target"]
    (1, None)
    """
    evaluated = [row for row in rows if "test_accuracy" in row]
    accuracies = [row["test_accuracy"] for row in evaluated]
    reached = (row for row in evaluated if target_accuracy is not None and row["test_accuracy"] >= target_accuracy)
    first: dict[str, float] = next(reached, {})
    return {
        "rounds": int(rows[-1]["round"]) if rows else 0,
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "target_accuracy": target_accuracy,
        "rounds_to_target": first.get("round"),
        "local_steps_to_target": first.get("local_steps"),
        "computation_time_to_target": first.get("computation_time"),
        **{f"final_{name}": rows[-1][name] for name in ("test_loss", "distance") if rows and name in rows[-1]},
    }


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and the packages that decide the numbers."""
    return {"python": platform.python_version()} | {name: _installed(name) for name in _PACKAGES}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def save_weights(module: Any, path: Path) -> None:
    """Write the module's weights as a checkpoint that ``load_from_checkpoint`` of a plain Lightning project takes."""
    weights = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
    checkpoint = {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": version("lightning"),
        "state_dict": weights,
        "loops": {},
    }
    temporary = path.with_suffix(".tmp")
    torch.save(checkpoint, temporary)
    os.replace(temporary, path)
