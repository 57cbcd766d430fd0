"""The regime against runs: digits, 150 rounds, 3 seeds, limitedfedacs with its own draws and with FedAvg's."""

import pytest

from fl_lightning.config import algorithm_parts as parts
from fl_lightning.config import compose as configs
from fl_lightning.diagnosis import systems

# Classes, q of the slow half, and by how much the averaged model of consistent draws was better (docs/diagnose.md).
MEASURED = [
    ("blocks", 0.2, 0.000),
    ("blocks", 0.45, 0.026),
    ("blocks", 0.7, 0.170),
    ("cyclic", 0.45, 0.011),
    ("cyclic", 0.89, -0.081),
]


def found(assignment: str, rate: float, names=("limitedfedacs",)):
    groups = "[{share: 0.5, num_steps: [1, 10], failure_rates: [%g, %g]}, {share: 0.5, num_steps: [20, 30], %s}]"
    groups = groups % (rate - 0.04, rate + 0.04, "failure_rates: [0.0, 0.1]")
    merged = configs.compose(["digits.yaml"])
    overrides = ["--data.partition.assignment", assignment, "--loop.schedule.groups", groups]
    planner, labels, _ = systems.planner_of_config(parts.environment(merged, overrides), 1.0)
    algorithms = list(parts.algorithms(merged, list(names), []))
    return systems.regime_of(algorithms, systems.diagnosed(algorithms, planner)[0], planner, labels)


@pytest.mark.parametrize(("assignment", "rate", "gain"), MEASURED)
def test_the_regime_is_what_runs_showed(assignment, rate, gain):
    regime = found(assignment, rate)
    assert regime.verdict == ("pays" if gain > 0.02 else "costs" if gain < -0.02 else "level")
    assert ("is level" if regime.verdict == "level" else regime.verdict) in regime.line


def test_no_regime_without_an_algorithm_whose_variance_is_known():
    assert found("cyclic", 0.45, ("fedacscv", "fedacs")) is None
