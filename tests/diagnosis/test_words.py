import json

import numpy as np
import pytest

from fl_lightning.cli.main import main
from fl_lightning.diagnosis.words import objective_line


def test_the_objective_in_one_line():
    w = np.full(4, 0.25)
    skewed = np.array([0.05, 0.05, 0.45, 0.45])
    assert objective_line(w, w, w).endswith("this run optimised what you asked for")
    assert objective_line(w, w, skewed).endswith("this run optimised something else than you asked for")
    assert objective_line(w, skewed, skewed) == (
        "objective: clients 0-1 should carry 50 %; this run, like FedAvg, gave them 10 %"
    )
    many = np.full(400, 1 / 400)
    uneven = np.where(np.arange(400) % 2, 1.9, 0.1) / 400
    assert "200 of 400 clients should carry 50 %; FedAvg would have given them 5 %" in objective_line(
        many, uneven, many
    )


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (["--config", "krum.yaml"], "Krum"),
        (["--config", "fedadam.yaml"], "ServerAdam"),
    ],
)
def test_a_finished_run_says_where_its_objective_is_not_known(settings, part, tmp_path, capsys):
    command = ["train", "--config", "digits.yaml", *settings, "--loop.rounds", "1", "--logger", "none"]
    assert main([*command, "--run_dir", str(tmp_path / "run")]) == 0
    said = f"objective: not known, because what {part} does to it depends on the data"
    assert said in capsys.readouterr().out.splitlines()


ADAM = ["--loop.solver=fl_lightning.solvers.TorchOptimizer", "--loop.solver.optimizer=torch.optim.Adam"]


def test_adam_has_votes_and_no_objective(tmp_path, capsys):
    given = ["--clients", str(tmp_path / "clients.csv"), "--picture", str(tmp_path / "votes.png"), *ADAM]
    (tmp_path / "clients.csv").write_text("num_steps,failure_rate\n1,0\n9,0\n")
    assert main(["diagnose", "--algorithms", "fedavg,fedacs", *given]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "client 0 carries 50 % of the weight but 10 % of the votes" in said
    assert "fedacs. It gives the votes you asked for" in said
    assert "not an objective, which nobody knows: Adam is not linear in the gradients" in said
    assert main(["diagnose", "--algorithms", "fedavg,fedacs", "--json", *given]) == 0
    rows = json.loads(capsys.readouterr().out)["algorithms"]
    np.testing.assert_allclose([row["votes"] for row in rows], [[0.1, 0.9], [0.5, 0.5]], atol=1e-6)
    assert not any("effective_weights" in row for row in rows)


def test_a_finished_run_with_adam_speaks_of_votes(tmp_path, capsys):
    command = ["train", "--config", "digits.yaml", "--config", "fedacs.yaml", *ADAM, "--loop.rounds", "1"]
    command += ["--logger", "none", "--run_dir", str(tmp_path / "run")]
    assert main(command) == 2
    assert "votes=True of TorchOptimizer" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "votes"), "--loop.solver.votes=true"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("votes: ")]
    assert len(said) == 1
    assert "this run gave them" in said[0]
