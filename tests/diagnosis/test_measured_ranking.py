"""What `diagnose` recommends is what stored runs show: consistent, stateless algorithms at equal local steps."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduction import measures, runs
from fl_lightning.config import algorithm_parts as algorithms
from fl_lightning.config import compose as configs
from fl_lightning.diagnosis.objective import recommend
from fl_lightning.diagnosis.systems import diagnosed, planner_of_config

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STATELESS = ("limitedfedacs", "fedacs", "workaware", "varianceoptimal", "cafednova")


@pytest.mark.parametrize("reading", ["digits_cyclic_server", "digits_blocks_server", "mnist_cyclic_server"])
def test_the_recommended_algorithm_is_first_at_equal_local_steps(reading):
    groups = measures.by_algorithm(runs.read(RESULTS / f"{reading}.csv"))
    measured = {
        name: float(np.mean(list(measures.at_equal_work(groups[name], groups["fedacs"]).values())))
        for name in STATELESS
        if name in groups
    }
    assert len(measured) >= 3, "a ranking needs algorithms"
    data, classes, _ = reading.split("_")
    merged = configs.compose([f"{data}.yaml"])
    planner, _, _ = planner_of_config(
        algorithms.environment(merged, ["--data.partition.assignment", classes]), algorithms.model_bytes(merged)
    )
    found, _ = diagnosed(algorithms.algorithms(merged, sorted(measured), []), planner)
    choice = recommend(found, share=0.2)
    forecast = [each.name for each in choice.consistent]
    assert choice.name == max(measured, key=measured.__getitem__)
    # Algorithms whose forecasts are far apart end in that order.
    for better in forecast:
        for worse in forecast:
            if choice.cost(_named(found, worse)) > 1.5 * choice.cost(_named(found, better)):
                assert measured[better] > measured[worse] + 0.02, (better, worse)
    assert all(math.isfinite(choice.cost(each)) for each in found)


def _named(found, name):
    return next(each for each in found if each.name == name)
