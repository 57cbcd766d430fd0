"""Clients that are not always there: what is predicted is what rounds do, and FedACS optimises what was asked for."""

import numpy as np
import pytest

from fl_lightning.aggregators import MemorizedMean, NormalizedMean
from fl_lightning.algorithms import Algorithm
from fl_lightning.samplers import Consistent, HeterogeneityAware, Importance, Systematic, Uniform, WorkAware
from fl_lightning.samplers.selection import Selection
from fl_lightning.system import AvailabilityTrace, Clock, DayNight, OnOff, Phones
from fl_lightning.types import Conditions
from reference.played_rounds import distance, measured, played_planner, predicted

ROUNDS = 3_000


def conditions_of(num_clients: int, num_rounds: int = 96) -> list[Conditions]:
    rng = np.random.default_rng(5)
    low = rng.integers(2, 15, num_clients)
    rates = rng.uniform(0.0, 0.4, num_clients)
    return [Conditions(low + rng.integers(0, 6, num_clients), rates) for _ in range(num_rounds)]


def weights_of(num_clients: int) -> np.ndarray:
    return np.random.default_rng(3).dirichlet(np.full(num_clients, 5.0))


def availability_of(kind: str, num_clients: int, tmp_path):
    away = np.resize([1.0, 2.0, 16.0, 4.0, 24.0, 8.0], num_clients)
    if kind == "day and night":
        return DayNight(0.5, 0.4, period=24, zones=3)
    if kind == "on and off":
        return OnOff(6.0, away.tolist())
    there = np.random.default_rng(1).random((40, num_clients)) < 6 / (6 + away)
    there[~there.any(axis=1), 0] = True
    there[0] = True
    rows = [f"{t + 1},{m},{int(there[t, m])}" for t in range(40) for m in range(num_clients)]
    (tmp_path / "a.csv").write_text("\n".join(["round,client,available", *rows]))
    return AvailabilityTrace(str(tmp_path / "a.csv"))


def case(kind: str, num_clients: int, tmp_path):
    clock = Clock(availability=availability_of(kind, num_clients, tmp_path))
    return played_planner(conditions_of(num_clients), weights_of(num_clients), clock)


KINDS = ("day and night", "on and off", "trace")


@pytest.mark.parametrize(
    ("kind", "num_clients"),
    [
        *(("day and night", 20), ("on and off", 6), ("trace", 20)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("day and night", 6), ("on and off", 20))),
        pytest.param("trace", 6, marks=pytest.mark.slow),
    ],
)
def test_fedacs_optimises_the_target_though_clients_are_away(kind, num_clients, tmp_path):
    planner = case(kind, num_clients, tmp_path)
    algorithm = Algorithm(sampling=Selection(HeterogeneityAware(), 3, Systematic()))
    said = predicted(algorithm, planner)
    assert said.distance < 0.005
    assert distance(measured(algorithm, planner, ROUNDS), planner.weights) < (0.07 if num_clients == 6 else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [6, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_that_replace_the_absent_are_predicted(kind, num_clients, tmp_path):
    planner = case(kind, num_clients, tmp_path)
    algorithm = Algorithm(sampling=Selection(HeterogeneityAware(), 3, Systematic(), absent="replaced"))
    found = measured(algorithm, planner, ROUNDS)
    assert distance(predicted(algorithm, planner).effective_weights, found) < 0.09
    if num_clients == 6:
        assert distance(found, planner.weights) > 0.1


ALGORITHMS = {
    "FedAvg": lambda: Algorithm(sampling=Selection(Importance(), 3, Systematic())),
    "FedAvg, corrected": lambda: Algorithm(sampling=Selection(Importance(), 3, Systematic(), absent="corrected")),
    "uniform": lambda: Algorithm(sampling=Selection(Uniform(), 3)),
    "FedACS, mean knowledge": lambda: Algorithm(sampling=Selection(HeterogeneityAware("mean"), 3, Systematic())),
    "FedACS of links, FedNova": lambda: Algorithm(
        sampling=Selection(HeterogeneityAware(corrects="links"), 3, Systematic()), aggregator=NormalizedMean()
    ),
    "work-aware": lambda: Algorithm(sampling=Selection(WorkAware(), 3, Systematic())),
    "uniform made consistent": lambda: Algorithm(sampling=Selection(Consistent(Uniform()), 3, Systematic())),
    "MIFA": lambda: Algorithm(sampling=Selection(Importance(), 3, Systematic()), aggregator=MemorizedMean()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_algorithms_are_predicted_where_clients_are_away(name, tmp_path):
    planner, algorithm = case("on and off", 6, tmp_path), ALGORITHMS[name]()
    found, said = measured(algorithm, planner, ROUNDS), predicted(algorithm, planner)
    assert distance(found, said.effective_weights) < 0.07
    if any(word in name for word in ("FedACS", "work-aware", "consistent")):
        assert said.distance < 0.01


@pytest.mark.parametrize("availability", [OnOff(3.0, [4.0, 8.0, 16.0]), DayNight(0.3, 0.3, 12, 3), Phones()])
def test_rates_count_the_rounds_in_which_somebody_had_to_be_waited_for(availability):
    there = np.mean([availability(3, 37 * index, seed=2) for index in range(1, 3_001)], axis=0)
    assert there == pytest.approx(availability.rates(3, seed=2), abs=0.015)
