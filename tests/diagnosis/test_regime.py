"""The regime against runs: digits, 150 rounds, 3 seeds, limitedfedacs with its own draws and with FedAvg's."""

import pytest

from fl_lightning.config import algorithm_parts as parts
from fl_lightning.config import compose as configs
from fl_lightning.diagnosis import systems

# Classes, q of the slow half, rounds, and by how much the averaged model of consistent draws was better
# (docs/diagnose.md).
MEASURED = [
    ("blocks", 0.2, 150, 0.000),
    ("blocks", 0.45, 150, 0.026),
    ("blocks", 0.7, 150, 0.170),
    ("cyclic", 0.45, 150, 0.011),
    ("cyclic", 0.89, 150, -0.081),
    ("cyclic", 0.89, 600, 0.004),
    ("iid", 0.45, 150, 0.001),
    ("iid", 0.89, 150, 0.004),
]


def found(assignment: str, rate: float, rounds=150, names=("limitedfedacs",)):
    groups = "[{share: 0.5, num_steps: [1, 10], failure_rates: [%g, %g]}, {share: 0.5, num_steps: [20, 30], %s}]"
    groups = groups % (rate - 0.04, rate + 0.04, "failure_rates: [0.0, 0.1]")
    merged = configs.compose(["digits.yaml"])
    kind = ["--data.partition", "fl_lightning.data.IID", "--data.partition.num_clients", "20"]
    kind = kind if assignment == "iid" else ["--data.partition.assignment", assignment]
    environment = parts.environment(merged, [*kind, "--loop.schedule.groups", groups])
    planner, labels, _ = systems.planner_of_config(environment, 1.0)
    algorithms = list(parts.algorithms(merged, list(names), []))
    return systems.regime_of(
        algorithms, systems.diagnosed(algorithms, planner)[0], planner, labels, rounds, environment.data.partition
    )


@pytest.mark.parametrize(("assignment", "rate", "rounds", "gain"), MEASURED)
def test_the_regime_is_what_runs_showed(assignment, rate, rounds, gain):
    regime = found(assignment, rate, rounds)
    assert regime.verdict == ("pays" if gain > 0.02 else "costs" if gain < -0.02 else "level")
    assert ("is level" if regime.verdict == "level" else regime.verdict) in regime.line


def test_no_regime_without_an_algorithm_whose_variance_is_known():
    assert found("cyclic", 0.45, names=("fedacscv", "fedacs")) is None
