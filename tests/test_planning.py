"""The planner: asks once, draws last and once, and forecasts what the run will meet."""

from dataclasses import replace

import numpy as np
import pytest

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.calibration import Calibration
from fl_lightning.callbacks import HeterogeneitySchedule, SamplerSelection
from fl_lightning.planning import Planner
from fl_lightning.samplers import HeterogeneityAware, PowerOfChoice, Sampler
from fl_lightning.solvers import SGD
from fl_lightning.types import Conditions
from systems import PAPER_GROUPS

M = 6


class Asking(Sampler):
    """Notes in which order it is used."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare(self, profiles, num_draws, probe, rng):
        self.calls.append("prepare")

    def probabilities(self, profiles, num_draws):
        self.calls.append("probabilities")
        return profiles.accumulation / profiles.accumulation.sum()

    def draw(self, probabilities, num_draws, rng):
        self.calls.append("draw")
        return super().draw(probabilities, num_draws, rng)


class Probe:
    num_steps = 5


def planner(sampler=None, schedule=None, **settings) -> Planner:
    defaults = {
        "schedule": schedule or HeterogeneitySchedule(groups=PAPER_GROUPS),
        "sampling": SamplerSelection(sampler or HeterogeneityAware(), 3),
        "aggregator": AnonymousMean(),
        "solver": SGD(),
        "calibration": Calibration(),
        "weights": np.full(M, 1 / M),
        "learning_rate": 0.1,
        "steps_per_epoch": np.ones(M, dtype=np.int64),
    }
    return Planner(**(defaults | settings))


def test_clients_are_asked_once_and_drawn_once_also_where_the_rate_is_a_fixed_point():
    sampler = Asking()
    plan = planner(sampler, solver=SGD(proximal=1.0)).plan(1, probe=Probe())
    assert sampler.calls[0] == "prepare"
    assert sampler.calls[-1] == "draw"
    assert sampler.calls.count("prepare") == sampler.calls.count("draw") == 1
    assert sampler.calls.count("probabilities") > 2  # at each rate on the way
    assert plan.cohort.counts.sum() == 3
    assert plan.probed_steps == 5


def test_a_fixed_point_has_the_step_length_of_fedavg():
    made = planner(solver=SGD(proximal=1.0))
    plan = made.plan(1)
    base = made.profiles(made.conditions(1))
    fedavg = float(base.weights @ ((1 - base.failure_rates) * base.accumulation))
    assert plan.step_length == pytest.approx(0.1 * fedavg, rel=1e-9)
    assert plan.profiles.accumulation == pytest.approx(
        SGD(proximal=1.0).accumulation(base.num_steps, plan.learning_rate)
    )


def test_a_sampler_that_asks_needs_somebody_to_ask():
    with pytest.raises(ValueError, match="PowerOfChoice asks clients before it draws"):
        planner(PowerOfChoice()).plan(1)


def test_the_plan_is_a_function_of_seed_and_round():
    one, other = planner().plan(4), planner().plan(4)
    np.testing.assert_array_equal(one.cohort.counts, other.cohort.counts)
    assert not np.array_equal(one.profiles.num_steps, planner(seed=1).plan(4).profiles.num_steps)


def test_a_forecast_never_sees_a_round_that_is_played_but_keeps_what_is_drawn_once():
    dynamic = planner()
    played = {tuple(dynamic.conditions(index).failure_rates) for index in range(1, 300)}
    typical = {tuple(each.failure_rates) for each in dynamic.typical_profiles()}
    assert len(typical) == 256
    assert not played & typical
    static = planner(schedule=HeterogeneitySchedule(groups=PAPER_GROUPS, dynamic=False))
    for each in static.typical_profiles():
        np.testing.assert_array_equal(each.failure_rates, static.conditions(7).failure_rates)


class Periodic:
    """T = 1 in two of three rounds and 7 in the third."""

    period = 3

    def configure_conditions(self, round_index, steps_per_epoch, seed):
        steps = 7 if round_index % 3 == 0 else 1
        return Conditions(np.full(M, steps), np.zeros(M))


def test_a_schedule_that_repeats_itself_is_forecast_by_one_period():
    made = planner(schedule=Periodic())
    assert [int(each.num_steps[0]) for each in made.typical_profiles()] == [1, 1, 7]
    long = Periodic()
    long.period = 3000
    assert sum(1 for _ in replace(made, schedule=long).typical_profiles()) == 256


def test_calibration_over_typical_rounds_uses_the_forecast():
    made = planner(schedule=Periodic(), calibration=Calibration("average"))
    rates = {made.plan(index).learning_rate for index in range(1, 7)}
    assert len(rates) == 1


@pytest.mark.parametrize("apply", ["local", "server", "split"])
def test_every_place_gives_the_step_length_of_fedavg(apply):
    made = planner(calibration=Calibration(apply=apply))
    plan, profiles = made.plan(1), made.profiles(made.conditions(1))
    fedavg = 0.1 * float(profiles.weights @ ((1 - profiles.failure_rates) * profiles.accumulation))
    assert plan.step_length == pytest.approx(fedavg, rel=1e-9)
    factors = plan.learning_rate / 0.1, plan.server_scale
    assert (factors[0] == 1, factors[1] == 1) == (apply == "server", apply == "local")
    if apply == "split":
        assert factors[0] == pytest.approx(factors[1])


class Selected(Sampler):
    """Selects by a rule, and says so."""

    calibration_scope = "none"

    def probabilities(self, profiles, num_draws):
        return np.eye(M)[int(profiles.num_steps[0]) % M]


def test_selections_by_rule_are_not_calibrated_and_slow_knowledge_only_on_average():
    assert {planner(Selected()).plan(index).learning_rate for index in range(1, 9)} == {0.1}
    slow = planner(HeterogeneityAware("mean"))
    slow.start()
    rates = {slow.plan(index).learning_rate for index in range(1, 9)}
    assert len(rates) == 1
    assert rates != {0.1}


def test_a_rate_that_saturates_local_work_is_said_once(caplog):
    made = planner(learning_rate=1.0)
    for index in range(1, 4):
        made.plan(index)
    assert sum("may saturate" in record.message for record in caplog.records) == 1


def test_a_fixed_point_that_does_not_settle_is_said(caplog):
    class Restless:
        def __init__(self):
            self.rate = 0.0

        def at_rate(self, plan, learning_rate):
            self.rate += 1.0
            profiles = replace(plan.profiles, accumulation=plan.profiles.accumulation * (1.5 + self.rate % 2))
            return replace(plan, learning_rate=learning_rate, expected=replace(plan.expected, profiles=profiles))

    made = planner()
    Calibration()(made.undrawn(made.profiles(made.conditions(1))), Restless())
    assert any("does not settle" in record.message for record in caplog.records)
