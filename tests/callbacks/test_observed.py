"""T and q that nobody knows: estimated from draws and deliveries, precisely enough for FedACS."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import (
    AnonymousMean,
    CommunicationAwareNormalizedMean,
    ControlVariates,
    NormalizedMean,
    PostponedBroadcast,
    ServerMomentum,
)
from fl_lightning.callbacks import Observed, ObservedConditions, SamplerSelection
from fl_lightning.engine import Engine
from fl_lightning.samplers import HeterogeneityAware, Importance, NormProportional
from fl_lightning.server.rates import Calibration
from fl_lightning.solvers import SGD
from fl_lightning.types import RoundResult, Updates
from made import made_planner
from systems import gaussian_federation, linear_module, small_loop

# The six clients of the specification.
WEIGHTS = np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2])
STEPS = np.array([1, 3, 5, 10, 20, 30])
FAILURES = np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0])


def observing_planner(schedule, sampler, aggregator):
    return made_planner(
        schedule=schedule,
        sampling=SamplerSelection(sampler, 12),
        aggregator=aggregator,
        solver=SGD(),
        calibration=Calibration(scope="none"),
        weights=WEIGHTS,
        learning_rate=0.01,
        steps_per_epoch=np.ones(6, dtype=np.int64),
        seed=3,
    )


def result_of(plan, arrived):
    """What a round shows: who arrived, with the T that they really did."""
    delivered = np.where(arrived, plan.cohort.counts, 0)
    clients = np.flatnonzero(delivered)
    none = torch.empty(len(clients), 0)
    updates = Updates(
        clients=clients, deltas=none, buffers=none, num_steps=STEPS[clients], losses=np.zeros(len(clients))
    )
    return RoundResult(plan=plan, delivered=delivered, updates=updates, metrics={}, training_seconds=0.0)


@pytest.mark.parametrize(
    ("sampler", "aggregator"),
    [(HeterogeneityAware, AnonymousMean), (Importance, CommunicationAwareNormalizedMean)],
    ids=["FedACS", "c-a-FedNova"],
)
def test_estimates_make_the_objective_the_wanted_one(sampler, aggregator):
    schedule = ObservedConditions()
    planner = observing_planner(schedule, sampler(), aggregator())
    planner.start()
    links, draws, index = np.random.default_rng(0), np.zeros(6), 0
    while draws.min() < 500:
        index += 1
        plan = planner.plan(index)
        draws += plan.cohort.counts > 0
        schedule.observe(result_of(plan, links.random(6) >= FAILURES))
    known = planner.conditions(index + 1)
    assert np.abs(known.failure_rates - FAILURES).max() < 0.05
    assert known.num_steps.tolist() == STEPS.tolist()
    plan = planner.plan(index + 1)
    contribution = plan.cohort.probabilities * (1 - FAILURES) * plan.coefficients * STEPS  # by the true T and q
    assert np.abs(contribution / contribution.sum() - WEIGHTS).sum() < 0.03


def test_what_is_not_known_costs():
    """The same, planned with the prior alone, misses the objective by far."""
    planner = observing_planner(ObservedConditions(), HeterogeneityAware(), AnonymousMean())
    plan = planner.plan(1)
    contribution = plan.cohort.probabilities * (1 - FAILURES) * plan.coefficients * STEPS
    assert np.abs(contribution / contribution.sum() - WEIGHTS).sum() > 0.5


def test_the_posterior_mean_by_hand():
    schedule = ObservedConditions(num_steps=4, failure_rate=0.2, prior_draws=5.0)
    planner = observing_planner(schedule, Importance(), AnonymousMean())
    first = planner.conditions(1)
    assert first.num_steps.tolist() == [4] * 6
    np.testing.assert_allclose(first.failure_rates, 0.2)
    plan = planner.plan(1)
    cohort = replace(plan.cohort, counts=np.array([0, 2, 0, 1, 0, 0]))  # a client drawn twice is asked once
    schedule.observe(result_of(replace(plan, cohort=cohort), np.array([1, 1, 1, 0, 1, 1], dtype=bool)))
    known = planner.conditions(2)
    np.testing.assert_allclose(known.failure_rates, [0.2, 1 / 6, 0.2, 2 / 6, 0.2, 0.2])
    assert known.num_steps.tolist() == [4, 3, 4, 4, 4, 4]


def test_decay_follows_a_link_that_changes():
    slow, quick = ObservedConditions(), ObservedConditions(decay=0.9)
    for schedule in (slow, quick):
        planner = observing_planner(schedule, Importance(), AnonymousMean())
        plan = planner.plan(1)
        everybody = replace(plan, cohort=replace(plan.cohort, counts=np.ones(6, dtype=np.int64)))
        for round_index in range(60):
            schedule.observe(result_of(everybody, np.full(6, round_index < 30)))
    one = np.ones(6, dtype=np.int64)
    rates = [schedule.configure_conditions(61, one, 0).failure_rates[0] for schedule in (slow, quick)]
    assert rates[0] == pytest.approx(0.5, abs=0.02)
    assert rates[1] > 0.8


@pytest.mark.parametrize(
    "arguments", [{"num_steps": 0}, {"failure_rate": 1.0}, {"prior_draws": 0}, {"decay": 0.0}, {"decay": 1.1}]
)
def test_bad_numbers_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ObservedConditions(**arguments)


class OwnSteps(Engine):
    """Clients that make other numbers of steps than they are asked for, and of which one never answers."""

    asked = 0

    is_elsewhere = True

    def work(self, state, clients, work):
        steps = np.array([2, 4, 6, 2, 4, 6])
        OwnSteps.asked += len(clients)
        return super().work(state, clients[clients != 1], replace(work, num_steps=steps))


def observed_loop(**settings):
    defaults = {"schedule": ObservedConditions(num_steps=3), "channel": Observed(), "engine": OwnSteps()}
    return small_loop(HeterogeneityAware(), **(defaults | settings))


def test_the_loop_plans_with_what_clients_report():
    loop = observed_loop(rounds=40, aggregator=NormalizedMean())
    results = list(loop.iterate(linear_module(), gaussian_federation()))
    for result in results:
        answered = result.updates.clients
        assert 1 not in answered
        assert result.delivered[1] == 0
        np.testing.assert_array_equal(result.plan.profiles.num_steps[answered], np.array([2, 4, 6, 2, 4, 6])[answered])
        np.testing.assert_allclose(result.plan.profiles.accumulation[answered], result.updates.num_steps)
    conditions = loop.planner.conditions(41)
    assert conditions.failure_rates[1] > 0.5
    assert (np.delete(conditions.failure_rates, 1) < 0.15).all()
    assert np.delete(conditions.num_steps, 1).tolist() == [2, 6, 2, 4, 6]


def test_the_aggregate_divides_by_the_reported_work():
    """FedNova of one client: tau Delta / A with A of what it did, by hand."""
    loop = observed_loop(rounds=1, aggregator=NormalizedMean(tau=7.0), calibration=Calibration(scope="none"))
    (result,) = list(loop.iterate(linear_module(), gaussian_federation()))
    start = torch.cat([parameter.detach().reshape(-1) for parameter in linear_module().parameters()])
    shares = result.delivered[result.updates.clients] * 7.0 / result.updates.num_steps / result.plan.cohort.num_draws
    step = torch.from_numpy(shares).float() @ result.updates.deltas
    torch.testing.assert_close(loop.state.weights, start - result.plan.learning_rate * step)


def test_what_was_observed_is_resumed():
    whole = observed_loop(rounds=6)
    whole.run(linear_module(), gaussian_federation())
    half = observed_loop(rounds=6)
    for result in half.iterate(linear_module(), gaussian_federation()):
        if result.plan.index == 3:
            saved = half.state_dict()
            break
    resumed = observed_loop(rounds=6)
    resumed.run(linear_module(), gaussian_federation(), saved)
    assert torch.equal(resumed.state.weights, whole.state.weights)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"aggregator": PostponedBroadcast()}, "PostponedBroadcast"),
        ({"aggregator": ServerMomentum(PostponedBroadcast())}, "ServerMomentum"),
        ({"aggregator": ControlVariates("always")}, "ControlVariates"),
        ({"sampling": SamplerSelection(NormProportional(), 3)}, "NormProportional"),
    ],
)
def test_parts_that_need_lost_updates_are_refused(part, named):
    with pytest.raises(ValueError, match=f"{named} .*ChannelFailures"):
        observed_loop(**part).run(linear_module(), gaussian_federation())


def test_a_sampler_that_needs_everybody_says_who_is_missing():
    loop = small_loop(NormProportional(), engine=OwnSteps())
    with pytest.raises(ValueError, match="client 1 did not answer"):
        loop.run(linear_module(), gaussian_federation())
