"""``fl-lightning diagnose RUN``: the objective with the factors that a run measured."""

import re

import numpy as np
import pytest

from fl_lightning.cli.main import main
from fl_lightning.runs.storage import load_latest


@pytest.fixture(scope="module")
def clipped(tmp_path_factory):
    """Return the folder of a short run of FedACS whose updates are clipped hard, with constant T and q."""
    folder = tmp_path_factory.mktemp("runs") / "clipped"
    arguments = ["--loop.uploads+=fl_lightning.uploads.Clip", "--loop.uploads.norm", "3", "--loop.uploads.of", "update"]
    system = ["--loop.schedule.dynamic", "false", "--loop.rounds", "3", "--logger", "none"]
    assert main(["train", "--config", "digits_fedacs.yaml", *system, *arguments, "--run_dir", str(folder)]) == 0
    return folder


def shown(capsys, *arguments):
    code = main(["diagnose", *arguments])
    output = capsys.readouterr()
    return code, " ".join(output.out.split()), output.err


def test_the_objective_has_the_measured_factors(clipped, capsys):
    code, out, _ = shown(capsys, str(clipped))
    assert code == 0
    # FedACS is consistent without clipping, so the objective is w times what clipping left, as the checkpoint has it.
    memory = load_latest(clipped / "checkpoints")[0]["loop"]["parts"]["uploads"]["0 Clip"]
    factors, arrivals = (memory[name]["numpy array"].numpy() for name in ("factors", "arrivals"))
    factors = np.where(arrivals > 0, factors, factors[arrivals > 0].mean())
    weights = np.loadtxt(clipped / "clients.csv", delimiter=",", skiprows=1, usecols=2)
    objective = weights * factors / (weights @ factors)
    planned, measured = map(float, re.search(r"is ([\d.]+) as planned and ([\d.]+) as measured", out).groups())
    assert planned == 0
    assert measured == pytest.approx(np.abs(objective - weights).sum(), abs=6e-4)
    assert measured > 0.1
    assert f"x{factors.mean():.2f} of what clients sent on average" in out
    assert f"least of client {factors.argmin()} (x{factors.min():.2f})" in out


def test_a_run_that_measures_nothing_is_as_planned(tmp_path, capsys):
    folder = tmp_path / "run"
    main(
        ["train", "--config", "digits_fedavg.yaml", "--loop.rounds", "1", "--logger", "none", "--run_dir", str(folder)]
    )
    code, out, _ = shown(capsys, str(folder))
    assert code == 0
    assert "as measured" not in out
    assert "the objective is the planned one" in out


def test_what_is_not_a_run_is_refused_in_one_line(clipped, tmp_path, capsys):
    code, _, error = shown(capsys, str(tmp_path))
    assert (code, error.count("\n")) == (2, 1)
    assert "is not the folder of a run: it has no config.yaml" in error
    (tmp_path / "config.yaml").write_bytes((clipped / "config.yaml").read_bytes())
    code, _, error = shown(capsys, str(tmp_path))
    assert code == 2
    assert "has no checkpoint yet" in error
