import numpy as np

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
