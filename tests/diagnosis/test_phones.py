"""Phones: hardly anybody is there, some nearly never. What is predicted for each preset is what rounds do."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from fl_lightning import theory
from fl_lightning.aggregators import MemorizedMean
from fl_lightning.algorithms import Algorithm
from fl_lightning.config import algorithm_parts as parts
from fl_lightning.config import compose as configs
from fl_lightning.diagnosis import systems, words
from fl_lightning.diagnosis.dry_run import planner_of
from fl_lightning.diagnosis.objective import recommend
from fl_lightning.samplers import HeterogeneityAware, Importance, PowerOfChoice, SubmodularSelection
from fl_lightning.samplers.selection import Selection
from fl_lightning.system import AvailabilityTrace, Clock, DayNight, Phones
from fl_lightning.types import Conditions
from reference.played_rounds import distance, measured, played_planner, predicted

CLIENTS = 20


def phones(num_clients: int = CLIENTS, availability=None):
    rng = np.random.default_rng(0)
    # A number of rounds that has nothing in common with the hours of a day: T does not depend on the hour.
    drawn = [Conditions(rng.integers(1, 21, num_clients), rng.uniform(0, 0.2, num_clients)) for _ in range(97)]
    clock = Clock(availability=availability or Phones())
    return played_planner(drawn, rng.dirichlet(np.full(num_clients, 5.0)), clock)


def presence_of(planner) -> np.ndarray:
    return planner.conditions(1).presence


def preset(name: str, *overrides: str) -> Algorithm:
    ((_, made),) = parts.algorithms(configs.compose([], "phones"), [name], list(overrides))
    return made


# Measured and predicted L1 from w, and how far both may be apart after so many rounds.
CLAIMS = {
    "fedacs": (4_000, 0.13),
    "limitedfedacs": (4_000, 0.13),
    "workaware": (4_000, 0.13),
    "varianceoptimal": (4_000, 0.13),
    "consistentfedbuff": (2_000, 0.08),
    "scaffold": (12_000, 0.05),
    "mifa": (30_000, 0.06),  # the rarest client comes for the first time after some 800 rounds, 16 times in 12,000
    "fedstale": (30_000, 0.06),
    "fedau": (30_000, 0.06),
    "fedavg": (4_000, 0.25),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_presets_optimise_what_is_predicted_of_them_among_phones(name):
    planner, algorithm = phones(), preset(name)
    num_rounds, tolerance = CLAIMS[name]
    found = measured(algorithm, planner, num_rounds, skip=num_rounds // 10)
    assert distance(found, predicted(algorithm, planner).effective_weights) < tolerance


def test_intervals_are_predicted_for_all_draws_and_not_for_those_of_a_round_with_few_clients():
    planner = phones()
    rates = presence_of(planner) * np.mean([1 - each.failure_rates for each in planner.system.schedule.rounds], axis=0)
    work = np.mean([each.num_steps for each in planner.system.schedule.rounds], axis=0)
    expected = planner.weights * work * (1 - (1 - rates) ** 50)  # all who are there are drawn: fewer than K
    found = predicted(preset("fedau"), planner).effective_weights
    assert distance(found, expected / expected.sum()) < 0.04


@pytest.mark.slow
def test_control_variates_take_away_most_of_what_a_limit_costs():
    planner, algorithm = phones(), preset("fedacscv")
    most = predicted(algorithm, planner)
    assert most.bounded == ("AdaptiveControlVariates",)
    found = measured(algorithm, planner, 3_000, skip=300)
    assert distance(found, planner.weights) < most.distance / 3


def test_bias_and_variance_of_a_limit_are_those_of_a_model_that_follows_its_clients():
    weights, rate, rng = np.full(CLIENTS, 1 / CLIENTS), 0.05, np.random.default_rng(0)
    hours, presence = Phones().hours(CLIENTS, 0), Phones().rates(CLIENTS, 0)
    errors, said = [], []
    for longest in (5, 20, 1000):
        omega, model, squares = theory.limited_presence_weights(weights, presence, longest), weights, []
        for index in range(6_000):
            steps = rate * omega / presence * (rng.random(CLIENTS) < hours[index % 24])
            model = model - (steps.sum() * model - steps)
            squares.append(((model - weights) ** 2).sum())
        errors.append(np.mean(squares[1_000:]))
        said.append(((omega - weights) ** 2).sum() + rate / 2 * theory.absence_variance(omega, presence))
    assert errors == pytest.approx(said, rel=0.35)
    assert errors[1] < 0.8 * min(errors[0], errors[2])


def test_a_limit_on_absences_is_predicted_and_chosen_by_variance():
    planner = phones()
    presence = presence_of(planner)
    limit = theory.absence_limit(planner.weights, presence)
    assert limit == pytest.approx(10)  # so few clients vary more than 0.5 under any limit that helps
    by_default = predicted(Algorithm(sampling=Selection(HeterogeneityAware(), 6)), planner)
    expected = theory.limited_presence_weights(planner.weights, presence, limit)
    assert by_default.effective_weights == pytest.approx(expected, rel=1e-6)
    assert by_default.absence == pytest.approx(theory.absence_variance(expected, presence), rel=1e-6)
    exact = predicted(Algorithm(sampling=Selection(HeterogeneityAware(), 6, absent="corrected")), planner)
    assert exact.distance < 1e-6
    assert exact.absence == pytest.approx(theory.absence_variance(planner.weights, presence))
    assert exact.absence > 3
    twenty = predicted(Algorithm(sampling=Selection(HeterogeneityAware(), 6, absent=20)), planner)
    expected = theory.limited_presence_weights(planner.weights, presence, 20)
    assert twenty.effective_weights == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_rounds_in_which_no_sum_succeeds_print_no_warnings():
    assert predicted(preset("secaggfedacs"), phones()).distance < 1


def test_more_clients_are_limited_by_their_variance():
    planner = phones(60)
    limit = theory.absence_limit(planner.weights, presence_of(planner))
    by_default = predicted(Algorithm(sampling=Selection(HeterogeneityAware(), 6)), planner)
    assert limit > 20
    assert by_default.absence == pytest.approx(0.5, abs=1e-3)


def test_many_clients_need_no_limit():
    planner = phones(400)
    assert theory.absence_limit(planner.weights, presence_of(planner)) == np.inf
    assert predicted(Algorithm(sampling=Selection(HeterogeneityAware(), 6)), planner).distance < 1e-6


@pytest.mark.parametrize("absent", [0.5, float("nan"), float("inf"), "gone", -3])
def test_bad_limits_are_refused(absent):
    with pytest.raises(ValueError, match="absent="):
        Selection(Importance(), absent=absent)


def test_the_variance_of_steps_is_that_of_rounds():
    """With all who are there drawn once and T alike, the step varies by absence and by nothing else."""
    clock = Clock(availability=DayNight(0.2, 0.15, 24, 4))
    planner = played_planner([Conditions(np.full(8, 5), np.zeros(8))], np.full(8, 1 / 8), clock)
    algorithm = Algorithm(sampling=Selection(HeterogeneityAware(), 8, absent="corrected"))
    plans = planner_of(algorithm, planner.system, planner.weights, 0.01)
    rounds = [plans.undrawn(plans.profiles(plans.conditions(index))) for index in range(1, 24 * 60 + 1)]
    steps = np.array([plan.expected.contribution for plan in rounds])
    steps = steps / steps.sum(axis=1).mean()
    assert steps.var(axis=0).sum() == pytest.approx(
        theory.absence_variance(planner.weights, presence_of(planner)), rel=0.15
    )


def test_fewer_are_drawn_where_fewer_are_there():
    planner = phones()
    algorithm = Algorithm(sampling=Selection(Importance(), 6))
    plans = planner_of(algorithm, planner.system, planner.weights, 0.01)
    hours = Phones().hours(CLIENTS, planner.system.clock.seed)
    draws, fewer = np.mean([theory.expected_draws(each, 6) for each in hours], axis=0)
    made = [plans.plan(index) for index in range(1, 24 * 30 + 1)]
    counts = [plan.cohort.counts.sum() for plan in made]
    assert np.mean(counts) == pytest.approx(draws, abs=0.1)
    assert np.mean([plan.profiles.available.sum() < 6 for plan in made]) == pytest.approx(fewer, abs=0.03)
    assert min(counts) == 1
    (note,) = systems.absence_notes(plans, 6)
    assert f"{draws:.1f} on average" in note
    assert f"once in {1 / presence_of(planner).min():.0f} rounds" in note


@pytest.mark.parametrize("sampler", [PowerOfChoice, SubmodularSelection])
def test_samplers_that_choose_choose_among_those_who_are_there(sampler):
    planner = phones()
    algorithm = Algorithm(sampling=Selection(sampler(), 6))
    found, unknown = systems.diagnosed([("it", algorithm)], planner)
    assert len(found) + len(unknown) == 1


def test_the_diagnosis_says_that_presence_must_be_known_and_why_a_choice_is_not_consistent():
    planner = phones()
    made = [(name, preset(name)) for name in ("fedavg", "fedacs", "limitedfedacs", "scaffold")]
    found, _ = systems.diagnosed(made, planner)
    needs = {each.name: each.needs for each in found}
    assert "presence" in needs["fedacs"].before_draw
    assert "presence" not in needs["fedavg"].before_draw
    choice = recommend(found)
    text = " ".join(words.verdict(found, choice))
    assert choice.name in ("fedacs", "limitedfedacs")
    assert "No algorithm without memory of clients optimises your objective" in text
    assert "--loop.sampling.absent corrected" in text
    assert "with memory: scaffold" in text
    many = systems.diagnosed(copy.deepcopy(made[1:2]), phones(300))[0]
    said = " ".join(words.verdict(many, recommend(many)))
    assert "It optimises the objective you asked for" in said
    assert "presence (how often each can be drawn)" in said


def test_clients_that_are_never_there_are_counted_by_nobody(tmp_path):
    rows = [f"{t},{m},{int(m < 2 or t == 0)}" for t in (1, 2) for m in range(3)]
    (tmp_path / "a.csv").write_text("\n".join(["round,client,available", *rows]))
    planner = phones(3, AvailabilityTrace(str(tmp_path / "a.csv")))
    for absent in (None, "replaced"):
        algorithm = Algorithm(sampling=Selection(HeterogeneityAware("mean"), 2, absent=absent))
        said = predicted(algorithm, planner)
        assert said.effective_weights[2] == 0
    remembering = Algorithm(sampling=Selection(Importance(), 2), aggregator=MemorizedMean())
    assert predicted(remembering, planner).effective_weights[2] == 0
    (note,) = systems.absence_notes(planner, 2)
    assert "1 clients are never there" in note


def test_a_day_moves_the_objective_and_its_mean_stays():
    """Two zones: by the hour the rounds optimise one or the other, over a day w; the drift is the predicted one."""
    weights, rate = np.full(40, 1 / 40), 0.02
    available = DayNight(0.5, 0.45, 24, 2)
    planner = played_planner([Conditions(np.full(40, 5), np.zeros(40))], weights, Clock(availability=available))
    plans = planner_of(Algorithm(sampling=Selection(HeterogeneityAware(), 8)), planner.system, planner.weights, 0.01)
    model, seen = np.full(40, 1 / 40), []
    for index in range(1, 24 * 120 + 1):
        contribution = plans.undrawn(plans.profiles(plans.conditions(index)), index).expected.contribution
        model = model - rate * (contribution.sum() * model - contribution)
        seen.append(model)
    group = np.array(seen[24 * 20 :])[:, :20].sum(axis=1).reshape(-1, 24).mean(axis=0)
    hours = available.hours(40, 0)
    length = plans.undrawn(plans.profiles(plans.conditions(1)), 1).expected.lasting.contribution.sum()
    chances = hours[np.arange(1, 25) % 24]
    predicted_rows = theory.periodic_weights(length * weights * chances / available.rates(40, 0), rate)
    assert group.mean() == pytest.approx(0.5, abs=0.02)
    assert np.ptp(group) > 0.05
    assert group == pytest.approx(predicted_rows[:, :20].sum(axis=1), abs=0.02)


def test_asynchronous_clients_that_are_away_arrive_less_often():
    planner, algorithm = phones(), preset("fedbuff")
    slow = planner_of(algorithm, planner.system, planner.weights, 0.01).conditions(1).seconds
    clock = copy.copy(planner.system.clock)
    clock.availability, clock._drawn = None, replace(clock._drawn, rates=None, presence=None)
    always = planner_of(algorithm, replace(planner.system, clock=clock), planner.weights, 0.01).conditions(1).seconds
    assert slow == pytest.approx(always / presence_of(planner))
