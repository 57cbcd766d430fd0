"""FedCote's shares against a solver of quadratic programs, and how it learns the labels."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fl_lightning.cli.main import main
from fl_lightning.engine.replay import TrainsElsewhere
from fl_lightning.runs.records import read_rounds
from fl_lightning.samplers.fedcote import matched_shares


@pytest.mark.parametrize("seed", range(12))
def test_shares_are_the_nearest_that_keep_the_labels(seed):
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet(np.full(4, 0.2), 15)
    w, usual = rng.dirichlet(np.ones(15)), rng.dirichlet(np.full(15, 0.3))
    shares = matched_shares(usual, w, mixes)
    solved = minimize(
        lambda s: ((s - usual) ** 2).sum(),
        w,
        jac=lambda s: 2 * (s - usual),
        bounds=[(0, None)] * 15,
        constraints={"type": "eq", "fun": lambda s: mixes.T @ (s - w), "jac": lambda s: mixes.T},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert mixes.T @ shares == pytest.approx(mixes.T @ w, abs=1e-9)
    assert ((shares - usual) ** 2).sum() <= solved.fun + 1e-8
    once = matched_shares(usual, w, mixes, exact=False)
    assert (once >= 0).all()
    assert once.sum() == pytest.approx(1)


def run(tmp_path, *settings):
    return main(["train", *settings, "--loop.rounds", "2", "--logger", "none", "--run_dir", str(tmp_path / "run")])


def test_labels_are_asked_for_once_and_charged(tmp_path, capsys):
    plain = ["--config", "digits_fedavg.yaml", "--loop.evaluate_every", "2"]
    bytes_up = []
    for settings in (plain, ["--config", "digits_fedcote.yaml", *plain[2:]]):
        assert run(tmp_path / settings[1], *settings) == 0
        bytes_up.append([float(row["uplink_bytes"]) for row in read_rounds(tmp_path / settings[1] / "run/metrics.csv")])
    (first, second), (asked, after) = bytes_up
    assert asked - first == 20 * 10 * 4  # a number for each class of each client
    assert (after - asked) == (second - first)


def test_data_without_classes_and_other_machines_are_refused(tmp_path, capsys):
    assert run(tmp_path, "--config", "toy_fedcote.yaml") == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "how many examples of each class they have, but there are no classes" in error
    with pytest.raises(ValueError, match="clients on other machines are not asked"):
        TrainsElsewhere(None).label_counts()
