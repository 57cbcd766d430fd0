"""The planner: asks once, draws last and once, and forecasts what the run will meet."""

import numpy as np
import pytest

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.callbacks import HeterogeneitySchedule, ObservedConditions, SamplerSelection
from fl_lightning.parts.traits import SamplerTraits, ScheduleTraits
from fl_lightning.planning import Planner, target_weights
from fl_lightning.samplers import Consistent, HeterogeneityAware, Importance, PowerOfChoice, Sampler
from fl_lightning.samplers.selection import Selection
from fl_lightning.server.rates import Calibration
from fl_lightning.solvers import SGD
from fl_lightning.types import Conditions
from made import made_planner
from systems import PAPER_GROUPS

M = 6


class Asking(Sampler):
    """Notes in which order it is used."""

    traits = SamplerTraits(asks="numbers")

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
        "calibration": Calibration(apply="local"),
        "weights": np.full(M, 1 / M),
        "learning_rate": 0.1,
        "steps_per_epoch": np.ones(M, dtype=np.int64),
    }
    return made_planner(**(defaults | settings))


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

    traits = ScheduleTraits(period=3)

    def configure_conditions(self, round_index, steps_per_epoch, seed):
        steps = 7 if round_index % 3 == 0 else 1
        return Conditions(np.full(M, steps), np.zeros(M))


def test_a_schedule_that_repeats_itself_is_forecast_by_one_period():
    made = planner(schedule=Periodic())
    assert [int(each.num_steps[0]) for each in made.typical_profiles()] == [1, 1, 7]
    long = Periodic()
    long.traits = ScheduleTraits(period=3000)
    assert sum(1 for _ in planner(schedule=long).typical_profiles()) == 256


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

    traits = SamplerTraits(scope="none")

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
    class Restless(SGD):
        asked = 0

        def accumulation(self, num_steps, lr):
            self.asked += 1
            return num_steps * (1.5 + self.asked % 2)

    solver = Restless(proximal=1.0)  # whose A depends on the learning rate
    planner(solver=solver, calibration=Calibration("round", "local")).plan(1)
    assert any("does not settle" in record.message for record in caplog.records)


def limited(limit, sampler=None, **settings) -> Planner:
    return planner(sampler, max_local_steps=limit, **settings)


def test_a_limit_asks_for_fewer_steps_and_leaves_links_and_step_length_alone():
    free, bound = planner(), limited(4)
    for index in range(1, 6):
        offered, asked = free.plan(index), bound.plan(index)
        np.testing.assert_array_equal(asked.profiles.num_steps, np.minimum(offered.profiles.num_steps, 4))
        np.testing.assert_allclose(asked.profiles.accumulation, asked.profiles.num_steps)
        np.testing.assert_array_equal(asked.profiles.conditions.offered_steps, offered.profiles.num_steps)
        np.testing.assert_array_equal(asked.profiles.failure_rates, offered.profiles.failure_rates)
        np.testing.assert_allclose(asked.effective_weights, bound.weights)  # consistent with the work that is asked for
        assert asked.step_length == pytest.approx(offered.step_length)
    assert limited(10**6).plan(1).learning_rate == free.plan(1).learning_rate


@pytest.mark.parametrize(("knowledge", "proximal", "rel"), [("instant", 0.5, 1e-9), ("mean", 0.0, 0.02)])
def test_a_limited_step_is_as_long_as_fedavgs_also_on_average_and_for_proximal_steps(knowledge, proximal, rel):
    settings = {"solver": SGD(proximal=proximal), "learning_rate": 0.01}
    free, bound = planner(**settings), limited(3, HeterogeneityAware(knowledge), **settings)
    bound.start()
    profiles = [free.profiles(free.conditions(index)) for index in range(1, 300)]
    wanted = [0.01 * float(each.weights @ ((1 - each.failure_rates) * each.accumulation)) for each in profiles]
    lengths = [bound.plan(index).step_length for index in range(1, 300)]
    assert np.mean(lengths) == pytest.approx(np.mean(wanted), rel=rel)


def test_the_automatic_limit_is_the_harmonic_mean_of_the_steps():
    steps = HeterogeneitySchedule(num_steps=[1, 2, 4, 8, 16, 32], failure_rates=0.1)
    weights = np.array([0.1, 0.3, 0.2, 0.2, 0.1, 0.1])
    expected = 1 / float((weights / np.array([1, 2, 4, 8, 16, 32])).sum())  # 2.99
    assert limited("auto", schedule=steps, weights=weights).step_limit == round(expected) == 3
    # Half U{1..10}, half U{20..30}: E[1/T] is .293 and .040, which makes 6.0 under every seed.
    many = {"weights": np.full(20, 0.05), "steps_per_epoch": np.ones(20, dtype=np.int64)}
    assert {limited("auto", seed=seed, **many).step_limit for seed in range(20)} == {6}
    alike = HeterogeneitySchedule(num_steps=7, failure_rates=0.1)
    assert limited("auto", schedule=alike).plan(1).profiles.num_steps.tolist() == [7] * M


def test_means_that_are_never_learned_are_refused():
    for sampler in (HeterogeneityAware("mean"), Consistent(HeterogeneityAware("mean"))):
        with pytest.raises(ValueError, match="ObservedConditions learns them only later: use knowledge='instant'"):
            planner(sampler, schedule=ObservedConditions()).start()
    planner(HeterogeneityAware(), schedule=ObservedConditions()).start()


def test_a_limit_that_nobody_can_know_beforehand_is_refused():
    with pytest.raises(ValueError, match="ObservedConditions learns only later: give a number"):
        limited("auto", schedule=ObservedConditions()).plan(1)
    assert limited(4, schedule=ObservedConditions()).plan(1).profiles.num_steps.tolist() == [4] * M


@pytest.mark.parametrize("values", [[1e308, 3e307, 5e307], [1e-320, 3e-320], [1.7e308] * 4])
def test_huge_and_tiny_weights_become_shares(values):
    shares = target_weights(values, np.ones(len(values), dtype=np.int64))
    assert shares.sum() == pytest.approx(1)
    assert shares / shares.max() == pytest.approx(np.asarray(values) / max(values), rel=1e-3)


def test_a_share_of_one_is_everybody_and_one_is_one():
    assert [Selection(Importance(), wanted).num_draws(8) for wanted in (1, 1.0, 0.5, 3.0)] == [1, 8, 4, 3]
