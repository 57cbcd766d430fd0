"""Asynchronous aggregators against a few lines of numpy that keep all models, and in real runs that pause."""

from functools import partial

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import (
    ControlVariates,
    LagTolerant,
    LastKnownUpdates,
    MemorizedMean,
    RecentMean,
    ReweightedProgress,
    ServerMomentum,
)
from fl_lightning.algorithms import Algorithm
from fl_lightning.asynchronous import ArrivalRates, AsynchronousSelection, Delayed, ExactAveraging, ExpectedStaleness
from fl_lightning.callbacks import ChannelFailures, SamplerSelection
from fl_lightning.diagnosis.dry_run import planner_of
from fl_lightning.samplers import FullParticipation, Uniform
from fl_lightning.system import Clock, Share
from fl_lightning.types import Conditions, Updates
from made import made_profiles
from reference import older_starts as reference
from reference.played_rounds import played_planner
from systems import gaussian_federation, linear_module, made_plan, small_loop

RULES = {
    "CA2FL": (lambda: Delayed(LastKnownUpdates()), reference.ca2fl),
    "ACE": (lambda: Delayed(MemorizedMean()), reference.ace),
    "ACED": (lambda: Delayed(RecentMean(3)), partial(reference.ace, max_age=3)),
    "AREA": (ExactAveraging, reference.area),
    "FedStaleWeight": (ExpectedStaleness, reference.fedstaleweight),
    "FedStaleWeight received": (
        lambda: ExpectedStaleness(normalize="received"),
        partial(reference.fedstaleweight, normalize="received"),
    ),
}
WEIGHTS = np.array([0.1, 0.3, 0.2, 0.15, 0.25])


def played(aggregator, num_rounds=30):
    """Yield each round of real selection, links and aggregator, and the model after it."""
    steps = np.array([2, 4, 3, 5, 1])
    profiles = made_profiles(
        weights=WEIGHTS,
        num_steps=steps,
        failure_rates=np.linspace(0.0, 0.4, 5),
        accumulation=steps.astype(float),
        seconds=np.array([2.0, 3.1, 7.3, 4.7, 1.3]),
    )
    selection, channel = AsynchronousSelection(ArrivalRates(), 3), ChannelFailures()
    selection.start(lambda: iter([profiles]))
    models = [torch.linspace(-1, 1, 4, dtype=torch.float64)]
    aggregator.setup(5, models[0])
    for index in range(1, num_rounds + 1):
        selection.arrange(profiles, index, 0)
        cohort = selection.configure_cohort(selection.expected_cohort(profiles), np.random.default_rng(0))
        coefficients = aggregator.coefficients(profiles, cohort)
        plan = made_plan(index, profiles, cohort, coefficients, 0.05, 1.0)
        delivered = channel.configure_delivery(plan, 0)
        mean_age = cohort.arrivals.expected + 1 / 3
        step = reference.Step(
            w=WEIGHTS,
            A=profiles.accumulation,
            z=delivered,
            started=cohort.arrivals.started,
            index=index,
            lr=0.05,
            buffer=3,
            usual=float(cohort.probabilities @ (5 * WEIGHTS * mean_age)),
        )
        clients, handout = aggregator.trains(plan, delivered), aggregator.handout(plan)
        starts = [handout.start(m, models[-1]) for m in clients.tolist()]
        deltas = [profiles.accumulation[m] * 0.1 * (m + 1) * (x - m) for m, x in zip(clients, starts, strict=True)]
        updates = Updates(
            clients=clients,
            deltas=torch.stack(deltas) if deltas else torch.zeros((0, 4), dtype=torch.float64),
            buffers=torch.zeros((len(clients), 0)),
            num_steps=steps[clients],
            losses=np.zeros(len(clients)),
        )
        models.append(aggregator(models[-1], updates, delivered, plan))
        yield step, models[-1].numpy()


@pytest.mark.parametrize("name", RULES)
def test_every_rule_equals_its_reference(name):
    make, rule = RULES[name]
    memory, x = {}, [np.linspace(-1, 1, 4)]
    ages = []
    for step, model in played(make()):
        ages += [step.index - 1 - step.started[m] for m in step.arrived]
        x.append(x[-1] - rule(memory, step, x))
        np.testing.assert_allclose(model, x[-1], rtol=1e-9, atol=1e-12, err_msg=f"round {step.index}")
    assert max(ages) > 2
    assert np.abs(x[-1] - x[0]).max() > 0.1


def play(make, rounds, resume=None):
    loop = small_loop(
        rounds=rounds,
        sampling=AsynchronousSelection(ArrivalRates(), 2),
        aggregator=make(),
        clock=Clock([Share(0.5, 5.0), Share(0.5, 1.0)], jitter=0.3),
    )
    return loop, list(loop.iterate(linear_module(), gaussian_federation(), resume))


@pytest.mark.parametrize(
    "make",
    [*(make for make, _ in RULES.values()), lambda: Delayed(ServerMomentum(ControlVariates()))],
    ids=[*RULES, "SCAFFOLD with momentum"],
)
def test_a_resumed_run_is_the_same_and_a_second_one_starts_anew(make):
    whole, _ = play(make, 8)
    part, _ = play(make, 3)
    resumed, _ = play(make, 8, part.state_dict())
    assert torch.equal(resumed.state.weights, whole.state.weights)
    expected = whole.state.weights.clone()
    list(whole.iterate(linear_module(), gaussian_federation()))
    assert torch.equal(whole.state.weights, expected)


@pytest.mark.parametrize("make", [make for make, _ in RULES.values()], ids=RULES)
def test_clients_that_wait_are_refused(make):
    with pytest.raises(ValueError, match="AsynchronousSelection"):
        small_loop(rounds=1, aggregator=make()).run(linear_module(), gaussian_federation())


HELD_BACK = {
    "FAVANO": (ReweightedProgress, lambda: SamplerSelection(Uniform(), 4)),
    "SAFA": (LagTolerant, lambda: SamplerSelection(FullParticipation(), 4)),
    "AREA": (ExactAveraging, lambda: AsynchronousSelection(ArrivalRates(), 4)),
    "FedStaleWeight": (ExpectedStaleness, lambda: AsynchronousSelection(ArrivalRates(), 4)),
}


@pytest.mark.parametrize("name", HELD_BACK)
def test_steps_are_as_long_as_reported_though_old_models_hold_them_back(name):
    """All gradients are 1: the way of the model is the length of its steps."""
    make, sampling = HELD_BACK[name]
    conditions = [Conditions(np.arange(12) % 5 + 2, np.linspace(0, 0.5, 12))] * 4
    planner = played_planner(conditions, np.random.default_rng(0).dirichlet(np.full(12, 3.0)), Clock(jitter=0.3))
    aggregator = make()
    algorithm = Algorithm(sampling=sampling(), aggregator=aggregator)
    plans = planner_of(algorithm, planner.system, planner.weights, planner.learning_rate)
    plans.start()
    x = torch.zeros(1, dtype=torch.float64)
    aggregator.setup(12, x)
    way, reported = [], 0.0
    for index in range(1, 601):
        plan = plans.plan(index)
        delivered = plans.system.clock.delivered(plan, plans.system.channel, 0)
        clients = aggregator.trains(plan, delivered)
        aggregator.handout(plan)
        updates = Updates(
            clients=clients,
            deltas=torch.from_numpy(plan.profiles.accumulation[clients])[:, None],
            buffers=torch.zeros((len(clients), 0)),
            num_steps=plan.profiles.num_steps[clients],
            losses=np.zeros(len(clients)),
        )
        x = aggregator(x, updates, delivered, plan)
        way.append(float(x))
        reported += plan.step_length if index > 100 else 0.0
    assert way[99] - way[-1] == pytest.approx(reported, rel=0.1)
