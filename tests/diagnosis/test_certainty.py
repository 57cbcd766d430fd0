"""What is said of an objective that rounds decide, that memory holds, or that depends on the data."""

import numpy as np
import pytest

from fl_lightning.aggregators import (
    AnonymousMean,
    LastKnownUpdates,
    MemorizedMean,
    NormalizedMean,
    SecureSum,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
)
from fl_lightning.aggregators.aggregator import weighted_sum
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import ChannelFailures
from fl_lightning.diagnosis.dry_run import GivenConditions, bounded_parts, planner_of, unknown_parts
from fl_lightning.diagnosis.systems import diagnosed
from fl_lightning.samplers import HeterogeneityAware, Importance, Systematic, WithReplacement
from fl_lightning.samplers.selection import Selection
from fl_lightning.system import Clock
from fl_lightning.types import Conditions
from fl_lightning.uploads import Clip, Quantized, RandomK, Signs, TopK, Upload
from reference.played_rounds import distance, measured, played_planner, predicted


def changing(num_clients=6, num_rounds=96, seed=0):
    rng = np.random.default_rng(seed)
    rates = np.linspace(0.5, 0.0, num_clients)
    return [Conditions(rng.integers(1, 4 + 4 * np.arange(num_clients)), rates) for _ in range(num_rounds)]


WEIGHTS = np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2])


@pytest.mark.parametrize("aggregator", [MemorizedMean, LastKnownUpdates, lambda: LastKnownUpdates("paper")])
@pytest.mark.parametrize("sampler", [Importance, HeterogeneityAware])
def test_memory_of_changing_work_is_predicted(aggregator, sampler):
    """FedACS asks clients when they have little to do, so that memory holds less than the mean work."""
    planner = played_planner(changing(), WEIGHTS)
    algorithm = Algorithm(sampling=Selection(sampler(), 3, Systematic()), aggregator=aggregator())
    found = measured(algorithm, planner, 2000, skip=50)
    assert distance(found, predicted(algorithm, planner).effective_weights) < 0.08


@pytest.mark.parametrize("threshold", [3, 0.6])
def test_sums_that_fail_are_in_the_prediction(threshold):
    rates = np.array([0.9, 0.85, 0.8, 0.4, 0.2, 0.1])
    planner = played_planner([Conditions(np.full(6, 5), rates)] * 16, WEIGHTS)
    algorithm = Algorithm(
        sampling=Selection(HeterogeneityAware(), 4, WithReplacement()), aggregator=SecureSum(1e3, threshold)
    )
    plain = Algorithm(sampling=Selection(HeterogeneityAware(), 4, WithReplacement()), aggregator=_Failing(threshold))
    said = predicted(algorithm, planner)
    found = measured(plain, planner, 8_000)
    assert said.distance > 0.1
    assert distance(found, said.effective_weights) < 0.06
    assert distance(found, said.effective_weights) < 0.5 * distance(found, WEIGHTS)


class _Failing(SecureSum):
    """The same decision without keys and masks."""

    traits = SecureSum.traits

    def __init__(self, threshold):
        super().__init__(1e3, threshold)

    def objective_factors(self, plan, draw):
        return None

    def _played(self, updates, delivered, plan):
        return weighted_sum((delivered * plan.coefficients)[updates.clients], updates.deltas)


class _Own(Upload):
    pass


@pytest.mark.parametrize(
    ("parts", "unknown"),
    [
        ({}, ()),
        ({"uploads": [Quantized(), RandomK(), RandomK(error_feedback=True), TopK(), Signs()]}, ()),
        ({"uploads": [TopK(error_feedback=False)]}, ("TopK",)),
        ({"uploads": [Signs(error_feedback=False), _Own()]}, ("Signs", "_Own")),
        ({"aggregator": ServerMomentum(AnonymousMean())}, ()),
        ({"aggregator": ServerAdam(AnonymousMean())}, ("ServerAdam",)),
        ({"aggregator": ServerYogi(AnonymousMean())}, ("ServerYogi",)),
        ({"aggregator": NormalizedMean("received")}, ("NormalizedMean",)),
        ({"aggregator": ServerMomentum(NormalizedMean("selected"))}, ("ServerMomentum",)),
    ],
)
def test_parts_say_where_the_objective_depends_on_the_data(parts, unknown):
    algorithm = Algorithm(**parts)
    assert unknown_parts(algorithm) == unknown
    planner = played_planner(changing(), WEIGHTS)
    assert diagnosed([("it", algorithm)], planner)[1] == (["it"] if unknown else [])


def test_parts_say_where_the_objective_is_a_limit():
    independent = Algorithm(sampling=Selection(Importance(), 3, WithReplacement()))
    links = ChannelFailures("independent")
    exact = System(clock=Clock(take_first=2), channel=links)
    assert bounded_parts(independent, exact) == ()
    assert bounded_parts(independent, System(clock=Clock(take_first=2), channel=ChannelFailures())) == ("take_first",)
    assert bounded_parts(Algorithm(), exact) == ("take_first",)
    assert bounded_parts(independent, System(clock=Clock(take_first=2, jitter=0.3), channel=links)) == ("take_first",)
    assert bounded_parts(Algorithm(uploads=[Clip()]), System()) == ("Clip",)
    assert bounded_parts(Algorithm(aggregator=AnonymousMean("received")), System()) == ("AnonymousMean",)


def test_a_sampler_that_relies_on_a_forecast_is_judged_by_other_rounds():
    """The mean of 256 forecast rounds is not the long-run mean: how far it is off is printed, and is not 0."""
    rounds = GivenConditions(changing(num_rounds=96, seed=1), lambda index: changing(num_rounds=1, seed=index)[0])
    system = System(schedule=rounds, channel=ChannelFailures())
    algorithm = Algorithm(sampling=Selection(HeterogeneityAware("mean"), 3, Systematic()))
    said = predicted(algorithm, planner_of(Algorithm(), system, WEIGHTS, 0.01))
    assert 0.002 < said.distance < 0.06
