"""Asynchronous algorithms: event by event, the objective they are predicted to optimise, and resuming."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_omega_table import SYSTEMS, TOLERANCE

from fl_lightning.aggregators import EchoedInnovations, LastKnownUpdates, MemorizedMean, RecentMean
from fl_lightning.algorithms import Algorithm
from fl_lightning.asynchronous import (
    ArrivalRates,
    AsynchronousSelection,
    Delayed,
    ExactAveraging,
    ExpectedStaleness,
    StaleMean,
)
from fl_lightning.callbacks import ChannelFailures, ComputationTime
from fl_lightning.diagnosis.dry_run import planner_of
from fl_lightning.samplers import Consistent, HeterogeneityAware, Importance
from fl_lightning.system import Clock, Share
from fl_lightning.types import Conditions, Updates
from made import made_profiles
from reference.played_rounds import distance as distance_of
from reference.played_rounds import measured as rounds_played
from reference.played_rounds import played_planner
from reference.played_rounds import predicted as predicted_objective
from systems import gaussian_federation, linear_module, made_plan, small_loop

ROUNDS, SEED = 900, 0


def seconds_of(system, steps, copies):
    """Slow clients have more seconds per step, in the order of their kinds."""
    return steps * np.tile(np.linspace(4.0, 1.0, system.num_kinds), copies)


def profiles_of(system, num_rounds, copies, seed):
    weights = np.tile(system.weights / copies, copies)
    for steps, rates in zip(*system.conditions(num_rounds, copies, seed), strict=True):
        yield made_profiles(
            weights=weights,
            num_steps=steps,
            failure_rates=rates,
            accumulation=steps.astype(float),
            seconds=seconds_of(system, steps, copies),
        )


def measured(system, sampler, aggregator, copies, scale=1.0):
    """Run the real selection, channel and aggregator on clients with quadratic losses at unit vectors.

    Returns the time average of the model and the objective that the plans reported, both (kinds,).
    """
    targets = torch.eye(system.num_kinds, dtype=torch.float64).repeat(copies, 1)
    selection, channel = AsynchronousSelection(sampler, 2 * copies, concurrency=4 * copies), ChannelFailures()
    selection.start(lambda: profiles_of(system, 256, copies, SEED + 1000))
    model = torch.full((system.num_kinds,), 1 / system.num_kinds, dtype=torch.float64)
    aggregator.setup(len(targets), model)
    total, reported, burn_in = torch.zeros_like(model), np.zeros(len(targets)), ROUNDS // 3
    for index, profiles in enumerate(profiles_of(system, ROUNDS, copies, SEED), start=1):
        steps = selection.arrange(profiles, index, SEED)
        gains = torch.from_numpy(system.gain(steps))
        conditions = replace(profiles.conditions, num_steps=steps)
        profiles = replace(profiles, conditions=conditions, accumulation=steps.astype(float))
        cohort = selection.configure_cohort(selection.expected_cohort(profiles), np.random.default_rng(0))
        coefficients = aggregator.coefficients(profiles, cohort)
        longer = 4 * scale if index <= burn_in else scale
        plan = made_plan(index, profiles, cohort, coefficients, system.learning_rate, longer)
        delivered = channel.configure_delivery(plan, SEED)
        clients, handout = aggregator.trains(plan, delivered), aggregator.handout(plan)
        starts = torch.stack([handout.start(int(m), model) for m in clients]) if len(clients) else model[None][:0]
        rows = torch.from_numpy(clients)
        updates = Updates(
            clients=clients,
            deltas=gains[rows][:, None] * (starts - targets[rows]),
            buffers=starts.new_empty((len(clients), 0)),
            num_steps=steps[clients],
            losses=np.zeros(len(clients)),
        )
        model = aggregator(model, updates, delivered, plan)
        if index > burn_in:
            total += model
            reported += plan.expected.contribution
    kinds = reported.reshape(copies, -1).sum(axis=0)
    return (total / (ROUNDS - burn_in)).numpy(), kinds / kinds.sum()


def predicted(system, omega, copies):
    steps, rates = system.conditions(ROUNDS, copies, SEED)
    seconds = seconds_of(system, steps, copies).mean(axis=0)
    amounts = omega(np.tile(system.weights, copies), rates, steps, system.gain(steps), seconds)
    kinds = np.broadcast_to(amounts, steps.shape).mean(axis=0).reshape(copies, -1).sum(axis=0)
    return kinds / kinds.sum()


# Sampler, Omega up to a factor, and copies of each kind: more where steps are short, which leaves more noise.
ALGORITHMS = {
    "FedBuff": (ArrivalRates, lambda w, q, a, gain, t: (1 - q) * gain / t, 24),
    "consistent FedBuff": (
        lambda: Consistent(ArrivalRates()),
        lambda w, q, a, gain, t: w * gain / a * (w * (1 - q) * a).sum(axis=1, keepdims=True),
        24,
    ),
    "FedBuff, jobs drawn by FedACS": (
        HeterogeneityAware,
        lambda w, q, a, gain, t: w * gain / a / (w / ((1 - q) * a)).sum(axis=1, keepdims=True),
        96,
    ),
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_measured_weights_are_the_predicted_ones(name, system):
    sampler, omega, copies = ALGORITHMS[name]
    found, reported = measured(SYSTEMS[system], sampler(), StaleMean(0.0), copies)
    assert np.abs(found - predicted(SYSTEMS[system], omega, copies)).sum() < TOLERANCE
    infinitesimal = predicted(SYSTEMS[system], lambda w, q, a, gain, t: omega(w, q, a, a, t), copies)
    assert np.abs(reported - infinitesimal).sum() < TOLERANCE


# Aggregator, the Omega it should have, copies, factor on the step, how far its prediction may be off. What memory holds
# of dynamic work is measured, not stated: jobs that take long are held longer.
RIVALS = {
    "CA2FL": (lambda: Delayed(LastKnownUpdates()), lambda w, q, a: w * a, 24, 1.0, 0.02),
    "ACE": (lambda: Delayed(MemorizedMean()), lambda w, q, a: w * a, 24, 1.0, 0.02),
    "ACED": (lambda: Delayed(RecentMean(20)), None, 24, 1.0, 0.08),
    "AREA": (ExactAveraging, lambda w, q, a: w * a, 48, 3.0, 0.02),
    "FedStaleWeight": (ExpectedStaleness, lambda w, q, a: w * (1 - q) * a, 24, 0.5, 0.02),
}


def of_rival(name, system):
    """Return what is measured, and what is reported at the gain of a finite learning rate and at none."""
    make, _, copies, scale, _ = RIVALS[name]
    found, reported = measured(SYSTEMS[system], ArrivalRates(), make(), copies, scale)
    steps, _ = SYSTEMS[system].conditions(ROUNDS, copies, SEED)
    kinds = (SYSTEMS[system].gain(steps).sum(axis=0) / steps.sum(axis=0)).reshape(copies, -1).mean(axis=0)
    return found, reported * kinds / (reported @ kinds), reported


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", RIVALS)
def test_rivals_optimise_what_they_report(name, system):
    found, with_gain, reported = of_rival(name, system)
    _, omega, copies, _, limit = RIVALS[name]
    if name == "AREA":  # keeps models, and no account of the work behind them
        with_gain = predicted(SYSTEMS[system], lambda w, q, a, gain, t: omega(w, q, gain), copies)
    assert np.abs(found - with_gain).sum() < limit
    if omega is not None and "static" in system:
        said = predicted(SYSTEMS[system], lambda w, q, a, gain, t: omega(w, q, a), copies)
        # Ages are whole numbers of steps of the server, which keeps arrival rates from dropping out exactly.
        assert np.abs(reported - said).sum() < (0.06 if name == "FedStaleWeight" else TOLERANCE)


class Watched(RecentMean):
    """Notes in each round what the rows that are young enough amount to: w A over the weight of them all."""

    traits = RecentMean.traits

    def direction(self, updates, delivered, plan):
        found = super().direction(updates, delivered, plan)
        young = plan.profiles.weights * ((self.versions >= 0) & (plan.index - 1 - self.versions <= self.max_age))
        vars(self).setdefault("amounts", []).append((self.last_accumulation, young / max(young.sum(), 1e-12)))
        self.last_accumulation = self.last_accumulation.copy()
        return found


@pytest.mark.parametrize("system", ["random-static", "random-dynamic"])
def test_what_aced_misses_is_a_ratio_and_work_that_is_old_when_it_comes(system):
    """Its reported Omega is .05 off; with the young rows of each round, their sum and their work it is not."""
    watched = Watched(20)
    found, _ = measured(SYSTEMS[system], ArrivalRates(), Delayed(watched), 24)
    rounds = [SYSTEMS[system].gain(steps) * shares for steps, shares in watched.amounts[ROUNDS // 3 :]]
    kinds = np.mean(rounds, axis=0).reshape(24, -1).sum(axis=0)
    assert np.abs(found - kinds / kinds.sum()).sum() < TOLERANCE


def test_staleness_weights_over_what_is_in_the_buffer_miss_their_objective():
    system = SYSTEMS["spec-static"]
    found, reported = measured(system, ArrivalRates(), ExpectedStaleness(normalize="received"), 24, 0.5)
    assert np.abs(found - reported).sum() > 3 * TOLERANCE


@pytest.mark.parametrize("mixing", [0.0, 0.3])
def test_a_discount_of_old_uploads_shifts_the_objective_as_reported(mixing):
    """Slow clients are old when they arrive, so that a discount takes from them."""
    system = SYSTEMS["spec-static"]
    found, reported = measured(system, ArrivalRates(), StaleMean(0.5, mixing), copies=24)
    plain = predicted(system, lambda w, q, a, gain, t: (1 - q) * gain / t, copies=24)
    assert np.abs(found - reported).sum() < 0.05 < np.abs(found - plain).sum()


def flat(seconds):
    num = len(seconds)
    return made_profiles(
        weights=np.full(num, 1 / num),
        num_steps=np.arange(1, num + 1),
        failure_rates=np.zeros(num),
        accumulation=np.ones(num),
        seconds=np.asarray(seconds, dtype=float),
    )


def test_events_come_in_the_order_of_the_clock():
    """Three clients of 2, 3 and 7 s, buffer of 2: ends at 2 and 3, then 4 and 6 (twice: client 0 first), and so on."""
    selection, profiles = AsynchronousSelection(ArrivalRates(), 2), flat([2.0, 3.0, 7.0])
    selection.start(lambda: iter([profiles]))
    seen = []
    for index in range(1, 5):
        selection.arrange(profiles, index, seed=0)
        cohort = selection.configure_cohort(selection.expected_cohort(profiles), np.random.default_rng(0))
        seen.append((cohort.counts.tolist(), selection.now, cohort.arrivals.started.tolist()))
    assert [counts for counts, _, _ in seen] == [[1, 1, 0], [2, 0, 0], [0, 1, 1], [1, 1, 0]]
    assert [now for _, now, _ in seen] == [3.0, 6.0, 7.0, 9.0]
    assert seen[1][2][0] == 0 + 1  # its second job began after the first step
    assert seen[2][2][1:] == [1, 0]  # client 2 has trained on the initial model all the time


def play(rounds, resume=None, sampler=None, **settings):
    chosen = {
        "sampling": AsynchronousSelection(sampler or Consistent(ArrivalRates()), 2),
        "aggregator": StaleMean(0.5, 0.2),
        "clock": Clock([Share(0.5, 5.0), Share(0.5, 1.0)], jitter=0.3),
        "callbacks": [ComputationTime()],
    }
    loop = small_loop(rounds=rounds, **(chosen | settings))
    return loop, list(loop.iterate(linear_module(), gaussian_federation(), resume))


@pytest.mark.parametrize("sampler", [lambda: Consistent(ArrivalRates()), HeterogeneityAware])
def test_a_resumed_run_is_the_same(sampler):
    whole, rows = play(12, sampler=sampler())
    part, _ = play(5, sampler=sampler())
    resumed, rest = play(12, part.state_dict(), sampler=sampler())
    assert torch.equal(resumed.state.weights, whole.state.weights)
    times = [[r.metrics["synchronous_time"] for r in results] for results in (rows, rest)]
    assert times[0][5:] == times[1]


def test_a_second_run_starts_anew():
    loop, first = play(6)
    again = list(loop.iterate(linear_module(), gaussian_federation()))
    assert [r.metrics["synchronous_time"] for r in again] == [r.metrics["synchronous_time"] for r in first]
    assert loop.algorithm.sampling.now == first[-1].metrics["synchronous_time"]


def test_costs_are_those_of_the_jobs_that_ended():
    _, results = play(8, clock=Clock([Share(0.5, 5.0), Share(0.5, 1.0)]))
    speed, total = np.array([5.0] * 3 + [1.0] * 3), 0.0
    for result in results:
        total += float((result.plan.cohort.counts * result.plan.profiles.num_steps) @ speed)
        assert result.metrics["computation_time"] == pytest.approx(total)
    assert results[-1].metrics["uplink_bytes"] == 8 * 2 * 72
    ages = [result.plan.index - 1 - result.plan.cohort.arrivals.started for result in results]
    assert max(age.max() for age in ages) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clock": Clock(deadline=100.0)}, "knows no deadline"),
        ({"clock": Clock(take_first=1)}, "take_first has no meaning"),
        ({"sampling": None}, "use it with AsynchronousSelection"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        play(3, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsynchronousSelection(ArrivalRates(), 0), "clients_per_round=0"),
        (lambda: AsynchronousSelection(Importance(), 2, -1), "concurrency=-1"),
        (lambda: StaleMean(-1.0), "exponent=-1.0"),
        (lambda: StaleMean(0.0, 2.0), "mixing=2.0"),
        (lambda: ExpectedStaleness(normalize="buffer"), "normalize='buffer' is unknown"),
        (lambda: RecentMean(-1), "max_age=-1"),
        (lambda: Algorithm(sampling=AsynchronousSelection(ArrivalRates(), 2)), "AnonymousMean takes them for those of"),
        (lambda: Delayed(EchoedInnovations()), "EchoedInnovations hands out models of its own"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def played(sampler, exponent, clock, num_rounds=3000, num_clients=6):
    """Return the objective that is predicted, and that of rounds that are played, (M,)."""
    steps = np.array([2, 4, 6, 8, 3, 5])[:num_clients]
    conditions = [Conditions(steps, np.linspace(0.0, 0.3, num_clients))] * 16
    planner = played_planner(conditions, np.full(num_clients, 1 / num_clients), clock)
    sampling = AsynchronousSelection(sampler, 2, concurrency=4)
    algorithm = Algorithm(sampling=sampling, aggregator=StaleMean(exponent))
    found = rounds_played(algorithm, planner, num_rounds, skip=100)
    return distance_of(predicted_objective(algorithm, planner).effective_weights, found), found


@pytest.mark.parametrize(
    ("sampler", "exponent"),
    [
        *((HeterogeneityAware, 0.5), (HeterogeneityAware, 2.0), (Importance, 2.0), (ArrivalRates, 0.5)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((Importance, 0.5), (ArrivalRates, 2.0))),
    ],
)
def test_a_discount_is_predicted_by_the_age_of_each_client(sampler, exponent):
    """Slow clients that are drawn have old uploads: of .3 to 3.5 steps, not one age for all."""
    error, _ = played(sampler(), exponent, Clock([9.0, 1.0, 4.0, 1.0, 20.0, 2.0]))
    assert error < 0.05


@pytest.mark.parametrize("clock", [lambda: Clock(1.0, jitter=0.8), lambda: Clock(2.0, jitter=0.5)])
def test_jitter_is_new_in_each_job_under_a_schedule_that_does_not_change(clock):
    conditions = [Conditions(np.full(4, 5), np.zeros(4))]
    planner = played_planner(conditions, np.full(4, 0.25), clock())
    algorithm = Algorithm(sampling=AsynchronousSelection(ArrivalRates(), 2), aggregator=StaleMean(0.0))
    plans = planner_of(algorithm, planner.system, planner.weights, planner.learning_rate)
    plans.start()
    counts = sum(plans.plan(index).cohort.counts for index in range(1, 601))
    assert counts / counts.sum() == pytest.approx(np.full(4, 0.25), abs=0.03)
