"""RunRecorder: the files a run leaves behind."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import LightningModule
from typing_extensions import override

from fl_lightning.callbacks.monitors import reaches
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.callbacks.run_files import MetricsFile, Uncovered, without_uncovered, write_client_table
from fl_lightning.loop import FederatedLoop
from fl_lightning.loop.results import MONITOR, Mode, averaged_name
from fl_lightning.loop.watching import module_checkpoint
from fl_lightning.output import write_durably
from fl_lightning.parts.memory import Remembers, encode
from fl_lightning.parts.traits import traits_of_federation
from fl_lightning.runs.identity import installed_versions
from fl_lightning.runs.records import CLIENTS, EVERYBODY, FINAL_FILES, METRICS, MODEL, QUANTILES, read_rounds
from fl_lightning.types import RoundResult
from fl_lightning.uploads.hidden import unmeasured

COLUMNS = (
    *("round", "test_accuracy", "averaged_accuracy", "test_loss", "averaged_loss", "train_loss", "local_steps"),
    *("computation_time", "round_time", "synchronous_time", "uplink_bytes", "downlink_bytes", "wall_time"),
    *("num_sampled", "num_delivered", "num_rejected", "learning_rate", "step_length", "chi2"),
)
_SUMS = ("expected_draws", "draws", "deliveries", "effective_weight", "num_steps", "failure_rate", "rejected")
_COSTS = ("local_steps", "computation_time", "synchronous_time", "uplink_bytes", "downlink_bytes")


class RunRecorder(Remembers, RoundCallback):
    """Writes ``metrics.csv`` (a row per round), ``clients.csv``, ``summary.json`` and ``model.ckpt`` into a folder.

    Beyond 100,000 clients ``clients.csv`` has a row for each of 1,000 groups, ``clients_quantiles.csv`` the quantiles
    over all clients, and ``clients.parquet`` each client (where pyarrow is installed).

    ``model.ckpt`` holds the model averaged over the rounds where the loop averages, and ``model_last.ckpt`` that of the
    last round.

    Args:
        run_dir: The folder; made if it is not there.
        target_accuracy: The value of the headline metric whose first crossing the summary reports.
        labels: Names that the summary carries along, such as data set and algorithm.
    """

    not_in_trainer = "it writes the files of a federated run; use CSVLogger and ModelCheckpoint"

    memory = ("_clients", "class_accuracy", "labels", "_seconds", "_metrics", "_evaluations")

    def __init__(
        self, run_dir: str, target_accuracy: float | None = None, labels: dict[str, str] | None = None
    ) -> None:
        self.run_dir = Path(run_dir)
        self.target_accuracy, self.labels = target_accuracy, labels or {}
        self._metrics = MetricsFile(self.run_dir / METRICS, COLUMNS)
        self._uncovered = Uncovered(self.run_dir)
        self.class_accuracy: list[float] = []  # when last evaluated; empty where there are no classes
        self._clients: dict[str, torch.Tensor] = {}
        self._evaluations: dict[str, torch.Tensor] = {}  # the last of each client, by the metric's name
        self._names: list[str] = []  # of the clients, where the data has them
        self._seconds = 0.0  # before this start, when the run was resumed
        self._began = time.perf_counter()
        self.versions = installed_versions()

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Start a new metrics file, or cut an earlier one back to the round that is resumed."""
        self._began = time.perf_counter()
        if not self._clients:
            zeros = torch.zeros(len(loop.client_weights), dtype=torch.float64)
            self._clients = {name: zeros.clone() for name in _SUMS}
        self._clients["size"] = torch.from_numpy(np.array(loop.federation.sizes, dtype=np.int64))
        self._clients["weight"] = torch.from_numpy(np.array(loop.client_weights, dtype=np.float64))
        self._names = list(traits_of_federation(loop.federation).names)
        if loop.fabric.global_rank:
            return
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._metrics.start(loop.round_index)
        self._uncovered.start(loop)
        for name in (*reversed(FINAL_FILES), QUANTILES, EVERYBODY):  # of a run that was here before
            (self.run_dir / name).unlink(missing_ok=True)

    @property
    def path(self) -> Path:
        """The metrics file."""
        return self._metrics.path

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Append the round."""
        plan = result.plan
        # In a private run the expected objective, for measured factors are those of single clients.
        planned = unmeasured(plan) if loop.algorithm.uploads.secret is not None else plan
        rejected = [fault.client for fault in result.faults]
        if plan.profiles.conditions.offered is not None:
            sums = self._clients.setdefault("offered_steps", self._clients["num_steps"].clone())
            sums += torch.from_numpy(plan.profiles.conditions.offered.astype(np.float64))
        for name, values in (
            ("expected_draws", plan.cohort.probabilities * plan.cohort.num_draws),
            ("draws", plan.cohort.counts),
            ("deliveries", result.delivered),
            ("effective_weight", planned.step_length * planned.lasting_weights),  # a longer step counts for more
            ("num_steps", plan.profiles.num_steps),
            ("failure_rate", plan.profiles.failure_rates),
            ("rejected", np.bincount(np.array(rejected, dtype=np.int64), minlength=plan.profiles.num_clients)),
        ):
            self._clients[name] += torch.from_numpy(np.asarray(values, dtype=np.float64))
        if len(result.class_accuracy):
            self.class_accuracy = result.class_accuracy.tolist()
        self._evaluations |= {name: torch.from_numpy(values) for name, values in result.client_metrics.items()}
        if loop.fabric.global_rank:
            return
        self._metrics.append(result.metrics)
        self._uncovered.append(loop, result)

    def on_federation_save(self, loop: FederatedLoop) -> None:
        """Make sure that no checkpoint is ever ahead of the metrics."""
        self._metrics.sync()

    def on_federation_end(self, loop: FederatedLoop) -> None:
        """Write what is known at the end."""
        if loop.fabric.global_rank:
            return
        averaged = loop.algorithm.averaging.state
        for name in FINAL_FILES:
            if name == MODEL and averaged is not None:
                loop.engine.load(averaged)
            self.write(name, loop, loop.round_index, loop.module)
        loop.engine.load(loop.state)

    def write(self, name: str, loop: FederatedLoop, num_rounds: int, module: LightningModule) -> None:
        """Write one of ``FINAL_FILES``, of a run that made some rounds; the loop need not have been started."""
        if name == CLIENTS:
            write_client_table(self.run_dir / name, self._uncovered.split(loop, self.client_columns(num_rounds)))
        elif name.startswith("model"):
            private = loop.algorithm.uploads.secret is not None
            write_durably(self.run_dir / name, encode(module_checkpoint(module, num_rounds, not private)))
        else:
            write_durably(self.run_dir / name, (json.dumps(self._summary(loop), indent=2) + "\n").encode())

    def _summary(self, loop: FederatedLoop) -> dict[str, object]:
        rows = read_rounds(self.path)
        noise: dict[str, str] = {}
        uploads = loop.algorithm.uploads
        if uploads.noise is not None:  # what kind of bound epsilon is, and who could recompute the noise
            key = "secret" if uploads.noise.is_secret else "fixed: can be recomputed"
            noise = {"epsilon_kind": uploads.epsilon_kind, "noise_key": key}
        rejected = self._clients["rejected"].int().tolist()
        summary: dict[str, object] = {
            **summarise(rows, self.target_accuracy, loop.monitor, loop.mode),
            **{name: rows[-1][name] for name in ("epsilon", "delta") if rows and name in rows[-1]},
            **noise,
            **self.labels,
            "seed": loop.seed,
            "rejected_updates": sum(rejected),
            "rejected_updates_by_client": {str(client): count for client, count in enumerate(rejected) if count},
            "per_class_accuracy": self.class_accuracy,
            "versions": self.versions,
            "device": str(loop.fabric.device),
            "seconds": round(self._elapsed(), 3),
        }
        return without_uncovered(loop, summary)

    def _elapsed(self) -> float:
        return self._seconds + time.perf_counter() - self._began

    def client_columns(self, num_rounds: int) -> dict[str, npt.NDArray[np.generic]]:
        """Return a table with a row for each client: weight, data, mean conditions, and how it took part."""
        known = {name: values.numpy() for name, values in self._clients.items()}
        totals = {name: known[name] for name in ("expected_draws", "draws", "deliveries", "rejected")}
        sums = [name for name in (*_SUMS, "offered_steps") if name in known and name not in totals]
        means = {name: known[name] / max(1, num_rounds) for name in sums}
        means["effective_weight"] = known["effective_weight"] / max(1e-300, known["effective_weight"].sum())
        evaluated = {name.removeprefix("test_"): values.numpy() for name, values in self._evaluations.items()}
        names = {"name": np.array(self._names)} if self._names else {}
        return {**names, "size": known["size"], "weight": known["weight"], **means, **totals, **evaluated}

    @override
    def state_dict(self) -> dict[str, Any]:
        names = {"names": self._names} if self._names else {}
        return super().state_dict() | {"seconds": self._elapsed()} | names

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._names = state.get("names", [])
        super().load_state_dict({name: value for name, value in state.items() if name != "names"})
        self._began = time.perf_counter()


def summarise(
    rows: list[dict[str, float]], target: float | None, monitor: str = MONITOR, mode: Mode = "max"
) -> dict[str, object]:
    """Return what a run reached, and what it took to reach the target for the first time (None: never).

    Of the headline metric, ``final`` is the last evaluation, ``last`` the mean over the last fifth of the rounds,
    ``averaged`` the averaged model at the end.

    >>> rows = [{"round": 1, "test_accuracy": 0.5, "local_steps": 10.0}, {"round": 2, "test_accuracy": 0.8}]
    >>> summarise(rows, 0.5)["rounds_to_target"], summarise(rows, 0.9)["rounds_to_target"]
    (1, None)
    """
    name, of_average = monitor.removeprefix("test_"), averaged_name(monitor)
    last = rows[-1] if rows else {}
    num_rounds = int(last.get("round", 0))
    values = [row[monitor] for row in rows if monitor in row]
    averaged = [row[of_average] for row in rows if of_average in row]
    late = [row[monitor] for row in rows if monitor in row and row["round"] > 0.8 * num_rounds]
    best_of = min if mode == "min" else max
    summary: dict[str, object] = {
        "rounds": num_rounds,
        "monitor": monitor,
        "mode": mode,
        f"final_{name}": values[-1] if values else None,
        f"last_{name}": sum(late) / len(late) if late else None,
        f"averaged_{name}": averaged[-1] if averaged else None,
        f"best_{name}": best_of(values, default=None),
        f"target_{name}": target,
    }
    for prefix, metric in (("", monitor), ("averaged_", of_average)):
        first = next((row for row in rows if metric in row and reaches(row[metric], target, mode)), {})
        summary[f"{prefix}rounds_to_target"] = first.get("round")
        summary |= {f"{prefix}{cost}_to_target": first.get(cost) for cost in _COSTS}
    finals = ("test_loss", "distance", "averaged_loss", "averaged_distance")
    summary |= {f"final_{metric}": last[metric] for metric in finals if metric in last}
    return summary | {f"total_{cost}": last[cost] for cost in _COSTS if cost in last}
