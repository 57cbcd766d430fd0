"""``audit`` of our own runs shows the objective that ``diagnose`` predicts for them."""

import re

import numpy as np
import pytest

from fl_lightning.audit import audit, read_log
from fl_lightning.callbacks.observed import PARTICIPATION
from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.runs.storage import checkpoints

LOGGED = "--loop.callbacks+=fl_lightning.callbacks.ParticipationLog"
FIXED = ["--loop.schedule.dynamic", "false", "--logger", "none"]


def trained(folder, algorithm, rounds, *more):
    command = ["train", "--config", f"toy_{algorithm}.yaml", *FIXED, "--loop.rounds", str(rounds), LOGGED, *more]
    return main([*command, "--run_dir", str(folder)])


ONCE = [
    ("fedavg", []),
    ("fedacs", []),
    ("fednova", []),
    ("cafedavg", []),
    ("fedavg", ["--loop.solver.momentum", "0.9"]),
]
OTHERS = [(name, []) for name in configs.names("algorithms") if name not in ("fedavg", "fedacs", "fednova", "cafedavg")]


@pytest.mark.parametrize(
    ("algorithm", "more"), [*ONCE, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_an_audit_equals_the_diagnosis_within_the_band(algorithm, more, tmp_path, capsys):
    if trained(tmp_path / "run", algorithm, 200 if (algorithm, more) in ONCE else 400, *more):
        pytest.skip(capsys.readouterr().err.splitlines()[-1])  # no log can show what it optimises
    found = audit(read_log(tmp_path / "run" / PARTICIPATION))
    columns = np.genfromtxt(tmp_path / "run" / "clients.csv", delimiter=",", names=True)
    predicted = columns["effective_weight"]
    order = np.array([int(name) for name in found.names])
    assert found.weights == pytest.approx(columns["weight"][order], abs=1e-6)
    inside = (found.objective.low <= predicted[order]) & (predicted[order] <= found.objective.high)
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path / "run")]) == 0
    said = re.search(r"as planned\D+([\d.]+)", capsys.readouterr().out)
    if said is None:
        pytest.skip("what it optimises depends on the data")
    planned = float(said[1])
    print(algorithm, found.distance, planned, inside.mean())
    assert inside.mean() >= 0.7
    assert found.distance.low - 0.03 <= planned <= found.distance.high + 0.03  # 30 clients, of which few are drawn


def test_rounds_count_by_the_length_of_their_steps(tmp_path):
    assert trained(tmp_path, "f3ast", 4) == 0  # half of the clients, then the other half, which takes longer steps
    columns = np.genfromtxt(tmp_path / "clients.csv", delimiter=",", names=True)
    expected = columns["weight"] * (1 - columns["failure_rate"]) * columns["num_steps"]
    assert columns["effective_weight"] == pytest.approx(expected / expected.sum(), rel=0.02)


def test_a_resumed_run_has_the_same_log(tmp_path):
    often = ["--checkpoint.every_n_rounds", "1", "--checkpoint.min_seconds", "0"]
    assert trained(tmp_path / "whole", "fedavg", 6, *often) == 0
    assert trained(tmp_path / "parts", "fedavg", 4, *often) == 0
    (_, older), _ = checkpoints(tmp_path / "parts" / "checkpoints")  # after round 3: the log is one ahead
    command = ["train", "--config", "toy_fedavg.yaml", *FIXED, "--loop.rounds", "6", LOGGED, *often]
    assert main([*command, "--resume", str(older)]) == 0
    assert (tmp_path / "whole" / PARTICIPATION).read_text() == (tmp_path / "parts" / PARTICIPATION).read_text()


@pytest.mark.parametrize(("algorithm", "said"), [("mifa", "use fl-lightning diagnose"), ("krum", "not linearly")])
def test_what_no_log_can_show_is_refused(algorithm, said, tmp_path, capsys):
    assert trained(tmp_path / "run", algorithm, 2) == 2
    assert said in capsys.readouterr().err


def test_a_config_writes_into_the_runs_folder_alone(tmp_path, capsys):
    outside = ["--loop.callbacks.path", str(tmp_path / "elsewhere.csv")]
    assert trained(tmp_path / "run", "fedavg", 2, *outside) == 2
    assert "give a folder in there" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere.csv").exists()
