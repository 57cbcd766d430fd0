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
        (
            [
                "--loop.solver=fl_lightning.solvers.TorchOptimizer",
                "--loop.solver.optimizer=torch.optim.Adam",
                "--loop.solver.allow_nonlinear=true",
            ],
            "TorchOptimizer",
        ),
    ],
)
def test_a_finished_run_says_where_its_objective_is_not_known(settings, part, tmp_path, capsys):
    command = ["train", "--config", "digits.yaml", *settings, "--loop.rounds", "1", "--logger", "none"]
    assert main([*command, "--run_dir", str(tmp_path / "run")]) == 0
    said = f"objective: not known, because what {part} does to it depends on the data"
    assert said in capsys.readouterr().out.splitlines()
