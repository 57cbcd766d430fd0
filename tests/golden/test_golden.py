"""A refactor changes no bit: final weights and metrics of every algorithm against stored digests.

``python tests/golden/test_golden.py`` stores them anew; a commit that does so says in one line why a result changed.
Other processors and versions of torch round differently: there the numbers are compared instead of their digests.
"""

import csv
import hashlib
import json
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs

STORED = Path(__file__).with_name("digests.json")
MEASURED = {"wall_time", "training_seconds"}  # columns that hold real seconds
# Who is drawn depends on trained weights, so that elsewhere a last bit may choose another of two like clients.
CHOOSING = {"digits_divfl", "digits_clustered", "digits_hics", "digits_powerofchoice", "digits_delta", "digits_os"}
NAMES = [f"{data}_{algorithm}" for data in ("digits", "toy") for algorithm in configs.names("algorithms")]


def machine() -> dict[str, str]:
    """Return what decides how sums are rounded."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.is_file() else []
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
    }


def play(name: str, folder: Path) -> dict:
    """Run six rounds on one thread and return digests and a few numbers of what is left behind."""
    arguments = ["--run_dir", str(folder), "--loop.rounds", "6", "--loop.engine.threads", "1", "--logger", "none"]
    fixed_noise = ["--loop.uploads.key", "0"] if name.endswith("dpfedacs") else []
    assert main(["train", "--config", f"{name}.yaml", *arguments, *fixed_noise]) == 0
    weights = torch.load(folder / "model_last.ckpt", weights_only=True)["state_dict"]
    parameters = [value for key, value in sorted(weights.items()) if value.is_floating_point()]
    flat = torch.cat([value.double().reshape(-1) for value in parameters]).numpy()
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [{key: cell for key, cell in row.items() if key not in MEASURED} for row in csv.DictReader(file)]
    return {
        "weights": hashlib.sha256(flat.tobytes()).hexdigest(),
        "metrics": hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest(),
        "norm": float(np.linalg.norm(flat)),
        "steps": int(rows[-1]["local_steps"]),
        "delivered": [int(row["num_delivered"]) for row in rows],
    }


@pytest.mark.parametrize("name", NAMES)
def test_results_are_what_they_were(name, tmp_path):
    stored = json.loads(STORED.read_text())
    expected, found = stored["runs"][name], play(name, tmp_path / "run")
    if machine() == stored["machine"]:
        assert found == expected
        return
    assert found["norm"] == pytest.approx(expected["norm"], rel=0.05 if name in CHOOSING else 1e-3)
    if name not in CHOOSING:
        assert (found["steps"], found["delivered"]) == (expected["steps"], expected["delivered"])


def store() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: play(name, Path(folder) / name) for name in NAMES}
    STORED.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(store())
