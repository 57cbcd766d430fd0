"""A refactor changes no bit, and neither does a pause: final weights and metrics of every algorithm against stored
digests, and the same runs again from their second round.

``python tests/golden/test_golden.py`` stores them anew; a commit that does so says in one line why a result changed.
Other processors and versions of torch round differently: there the numbers are compared instead of their digests.
In float64 rounding is too small to matter, and the weights themselves are compared, wherever the test runs.
"""

import csv
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.runs.storage import checkpoints

STORED = Path(__file__).with_name("digests.json")
PROJECTED = Path(__file__).with_name("projections.json")
DOUBLE = [
    *("--fabric.precision", "64-true", "--loop.rounds", "5", "--loop.batch_size", "8"),
    *("--data.partition.num_clients", "10", "--loop.sampling.clients_per_round", "3"),
]
SIX = ["--loop.rounds", "6", "--checkpoint.min_seconds", "0", "--checkpoint.keep", "9"]  # all rounds can be resumed
MEASURED = {"wall_time", "training_seconds"}  # columns that hold real seconds
# Who is drawn depends on trained weights, so that elsewhere a last bit may choose another of two like clients.
CHOOSING = {"digits_divfl", "digits_clustered", "digits_hics", "digits_powerofchoice", "digits_delta", "digits_os"}
CHOOSING |= {"digits_cafed", "digits_oort", "digits_pyramidfl", "digits_tifl"}
REFUSED = {"toy_fedcote", "toy_fedntd", "toy_fedrep"}  # data without classes, a model without a second part
ALL = [f"{data}_{algorithm}" for data in ("digits", "toy") for algorithm in configs.names("algorithms")]
NAMES = [name for name in ALL if name not in REFUSED]


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


def final_weights(name: str, folder: Path, settings: list[str]) -> np.ndarray:
    """Run on one thread and return the last model as one vector."""
    arguments = ["--run_dir", str(folder), "--loop.engine.threads", "1", "--logger", "none"]
    arguments += ["--loop.uploads.key", "0"] if name.endswith("dpfedacs") else []  # noise that can be drawn again
    assert main(["train", "--config", f"{name}.yaml", *arguments, *settings]) == 0
    weights = torch.load(folder / "model_last.ckpt", weights_only=True)["state_dict"]
    parameters = [value for key, value in sorted(weights.items()) if value.is_floating_point()]
    return torch.cat([value.double().reshape(-1) for value in parameters]).numpy()


def projections(algorithm: str, folder: Path) -> list[float]:
    """Return the norm of the weights after five rounds in float64, and their products with four fixed directions."""
    flat = final_weights(f"digits_{algorithm}", folder, DOUBLE)
    directions = np.random.default_rng(0).normal(size=(4, len(flat)))
    return [float(np.linalg.norm(flat)), *(directions @ flat).tolist()]


def play(name: str, folder: Path) -> dict:
    """Run six rounds and return digests and a few numbers of what is left behind."""
    flat = final_weights(name, folder, SIX if name.startswith("digits") else SIX[:2])  # the others are not resumed
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [{key: cell for key, cell in row.items() if key not in MEASURED} for row in csv.DictReader(file)]
    return {
        "weights": hashlib.sha256(flat.tobytes()).hexdigest(),
        "metrics": hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest(),
        "norm": float(np.linalg.norm(flat)),
        "steps": int(rows[-1]["local_steps"]),
        "delivered": [int(row["num_delivered"]) for row in rows],
    }


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return a function that gives the folder of a run, which is made once, and what was found in it."""
    root = tmp_path_factory.mktemp("golden")
    return cache(lambda name: (root / name, play(name, root / name)))


@pytest.mark.parametrize("name", NAMES)
def test_results_are_what_they_were(name, played):
    stored = json.loads(STORED.read_text())
    expected = stored["runs"][name]
    folder, found = played(name)
    if name.startswith("toy"):
        assert "distance" in (folder / "metrics.csv").read_text().partition("\n")[0].split(",")
    if machine() == stored["machine"]:
        assert found == expected
        return
    assert found["norm"] == pytest.approx(expected["norm"], rel=0.05 if name in CHOOSING else 1e-3)
    if name not in CHOOSING:
        assert (found["steps"], found["delivered"]) == (expected["steps"], expected["delivered"])


@pytest.mark.parametrize("algorithm", configs.names("algorithms"))
def test_every_algorithm_resumes_exactly(algorithm, played, tmp_path, capsys):
    """The folder of a finished run, without its summary and later checkpoints, is that of a killed run."""
    from stored_runs import content_of

    name = f"digits_{algorithm}"
    whole, found = played(name)
    killed = shutil.copytree(whole, tmp_path / "killed")
    (killed / "summary.json").unlink()
    for number, path in checkpoints(killed / "checkpoints"):
        if number > 2:
            path.unlink()
    capsys.readouterr()
    assert play(name, killed) == found
    assert "continuing after round 2 of 6" in capsys.readouterr().err
    assert content_of(killed) == content_of(whole)


@pytest.mark.parametrize("algorithm", configs.names("algorithms"))
def test_weights_in_float64_are_the_same_on_every_machine(algorithm, tmp_path):
    expected = json.loads(PROJECTED.read_text())[algorithm]
    assert projections(algorithm, tmp_path / "run") == pytest.approx(expected, rel=1e-4, abs=1e-4 * expected[0])


def store() -> None:
    if "OPENBLAS_CORETYPE" in os.environ:
        raise SystemExit("unset OPENBLAS_CORETYPE, as the tests do: results are stored as this processor computes them")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: play(name, Path(folder) / name) for name in NAMES}
        doubles = {name: projections(name, Path(folder) / f"{name}_64") for name in configs.names("algorithms")}
    STORED.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in doubles.items()]
    PROJECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.exit(store())
