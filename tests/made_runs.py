"""Run folders made by hand, in the shape that the recorder leaves them."""

import csv
import json
from pathlib import Path

import numpy as np
import yaml

NUM_CLIENTS = 4


def make_run(
    root: Path, algorithm: str, seed: int, rounds: int = 30, level: float = 0.6, target: float = 0.4, data: str = "made"
) -> Path:
    """Write one finished run; the higher the level, the better it learns."""
    folder = root / algorithm / f"seed_{seed}"
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(algorithm), int(1000 * level)])
    index = np.arange(1, rounds + 1)
    accuracy = np.clip(level * index / rounds + rng.normal(0, 0.02, rounds), 0, 1)
    steps = np.cumsum(rng.integers(20, 60, rounds))
    columns = {
        "round": index,
        "test_accuracy": accuracy,
        "test_loss": 2 - accuracy,
        "train_loss": 1.5 - accuracy,
        "local_steps": steps,
        "computation_time": steps * 0.5,
        "round_time": np.full(rounds, 10.0),
        "wall_time": index * 0.1,
        "num_sampled": np.full(rounds, 2),
        "num_delivered": np.full(rounds, 1),
        "learning_rate": np.full(rounds, 0.1),
        "step_length": np.full(rounds, 0.3),
        "chi2": np.full(rounds, 1e-32 if algorithm == "fedacs" else 0.5),
    }
    write_table(folder / "metrics.csv", columns)
    weights = np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    write_table(
        folder / "clients.csv",
        {
            "client": np.arange(NUM_CLIENTS),
            "size": np.full(NUM_CLIENTS, 10),
            "weight": weights,
            "expected_draws": np.full(NUM_CLIENTS, rounds / 2),
            "draws": np.full(NUM_CLIENTS, rounds / 2) + rng.integers(-2, 3, NUM_CLIENTS),
            "deliveries": np.full(NUM_CLIENTS, rounds / 4),
            "effective_weight": weights if algorithm == "fedacs" else np.array([0.1, 0.1, 0.4, 0.4]),
            "num_steps": np.array([5.0, 5.0, 25.0, 25.0]),
            "failure_rate": np.array([0.4, 0.4, 0.1, 0.1]),
        },
    )
    reached = np.flatnonzero(accuracy >= target)
    summary = {
        "rounds": rounds,
        "final_accuracy": accuracy[-1],
        "target_accuracy": target,
        "rounds_to_target": int(index[reached[0]]) if len(reached) else None,
        "data": data,
        "algorithm": algorithm,
        "seed": seed,
        "per_class_accuracy": [0.0, 0.5, min(1.0, level + 0.2)],
        "versions": {"python": "3.11", "torch": "2"},
        "seconds": 3.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    config = {
        "seed": seed,
        "run_dir": str(folder),
        "logger": "none",
        "data": {"class_path": f"fl_lightning.data.{data}"},
        "model": {"class_path": "fl_lightning.module.FederatedModule"},
        "loop": {"rounds": rounds, "sampling": {"init_args": {"sampler": {"class_path": f"samplers.{algorithm}"}}}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "model.ckpt").write_bytes(b"weights")
    return folder


def write_table(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Write columns as the recorder does."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([repr(value.item()) for value in row] for row in zip(*columns.values(), strict=True))


def make_comparison(root: Path, num_algorithms: int = 3, num_seeds: int = 3) -> Path:
    """Write several algorithms, of which FedACS is not the best."""
    names = ["fedacs", "fedavg", "scaffold", *(f"other{number}" for number in range(100))][:num_algorithms]
    for place, name in enumerate(names):
        level = {"fedacs": 0.6, "fedavg": 0.35, "scaffold": 0.8}.get(name, 0.3 + 0.4 * (place % 7) / 7)
        for seed in range(num_seeds):
            make_run(root, name, seed, level=level)
    return root
