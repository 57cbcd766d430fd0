"""The virtual clock: seconds, deadlines, over-selection and availability against what follows from their definition."""

import json

import numpy as np
import pytest

from fl_lightning import samplers
from fl_lightning.aggregators import AnonymousMean
from fl_lightning.callbacks import ChannelFailures, ComputationTime, HeterogeneitySchedule, SamplerSelection
from fl_lightning.parts.bases import Channel
from fl_lightning.samplers.selection import Selection
from fl_lightning.server.budget import Budget
from fl_lightning.system import AvailabilityTrace, Between, Clock, DayNight, LogNormal, OnOff, Share, Traffic
from fl_lightning.types import Asked, Conditions
from made import made_profiles
from systems import PAPER_GROUPS, gaussian_federation, linear_module, made_plan, small_loop

M = 8
STEPS = np.arange(1, M + 1)
SIZES = Traffic(download=100.0, upload=50.0, model=100.0)


def started(num_clients=M, seed=0, traffic=SIZES, steps=None, **settings):
    clock = Clock(**settings)
    steps = np.arange(1, num_clients + 1) if steps is None else steps
    ones = np.full(num_clients, 1 / num_clients)
    profiles = made_profiles(weights=ones, num_steps=steps, failure_rates=0 * ones, accumulation=steps.astype(float))
    clock.setup(num_clients, seed, lambda: iter([profiles]), traffic)
    return clock


def test_time_is_latency_download_training_and_upload():
    clock = started(seconds_per_step=[0.5] * 4 + [2.0] * 4, upload_rate=10.0, download_rate=25.0, latency=3.0)
    training, whole = clock.times(1, STEPS)
    assert training.tolist() == (STEPS * np.array([0.5] * 4 + [2.0] * 4)).tolist()
    assert whole == pytest.approx(training + 3 + 100 / 25 + 50 / 10)


def test_times_of_some_clients_are_those_among_all():
    clock = started(seconds_per_step=Between(0.5, 2.0), upload_rate=Between(1.0, 9.0), latency=3.0, jitter=0.4)
    some = np.array([6, 0, 3])
    for of_all, of_some in zip(clock.times(2, STEPS), clock.times(2, STEPS, clients=some), strict=True):
        assert of_all[some].tolist() == of_some.tolist()


def test_values_come_from_groups_ranges_spreads_and_files(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps([float(m) for m in range(M)]))
    assert started(seconds_per_step=str(tmp_path / "s.json")).pace(1).seconds_per_step.tolist() == list(range(M))
    groups = started(seconds_per_step=[Share(0.25, 5.0), Share(0.75, (1.0, 2.0))]).pace(1).seconds_per_step
    assert groups[:2].tolist() == [5, 5]
    assert ((groups[2:] >= 1) & (groups[2:] <= 2)).all()
    many = started(20_000, seconds_per_step=LogNormal(2.0, 0.5), latency=Between(1.0, 3.0))
    logs = np.log(many.pace(1).seconds_per_step)
    assert (np.median(logs), logs.std()) == pytest.approx((np.log(2), 0.5), abs=0.02)
    assert many.pace(1).latency.mean() == pytest.approx(2, abs=0.02)
    assert abs(np.corrcoef(logs, np.arange(20_000))[0, 1]) < 0.03
    slow = started(seconds_per_step=LogNormal(2.0, 0.5), upload_rate=Between(1.0, 9.0), follows_steps=True).pace(1)
    assert (np.diff(slow.seconds_per_step) <= 0).all()  # T rises with the client's number here
    assert (np.diff(slow.upload_rate) >= 0).all()


def test_a_trace_gives_every_round_its_own_speeds(tmp_path):
    rows = [f"{t},{m},{t + m},{10 * t}" for t in (1, 2) for m in range(M)]
    (tmp_path / "t.csv").write_text("\n".join(["round,client,seconds_per_step,upload_rate", *rows]))
    clock = started(trace=str(tmp_path / "t.csv"))
    assert (
        clock.pace(2).seconds_per_step.tolist() == clock.pace(4).seconds_per_step.tolist() == [2 + m for m in STEPS - 1]
    )
    assert clock.times(1, STEPS)[1] == pytest.approx(STEPS * np.arange(1, M + 1) + 50 / 10)
    (tmp_path / "t.csv").write_text("\n".join(["round,client,seconds_per_step", *rows[:-1]]).replace(",10", ""))
    with pytest.raises(ValueError, match="without holes"):
        Clock(trace=str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"jitter": -1.0}, "jitter=-1.0 must be"),
        ({"deadline": 0.0}, "deadline=0.0 must be a positive"),
        ({"take_first": 0}, "take_first=0 must be"),
        ({"seconds_per_step": -1.0}, "seconds_per_step=-1 of client 0"),
        ({"upload_rate": [1.0] * 7 + [0.0]}, "upload_rate=0 of client 7 must be above 0"),
        ({"latency": [1.0]}, "latency has 1 values, but there are 8 clients"),
        ({"seconds_per_step": Between(2.0, 1.0)}, "low=2.0 must not be above"),
        ({"seconds_per_step": [Share(0.5, 1.0)]}, "must be positive and add up to 1"),
        ({"seconds_per_step": LogNormal(-1.0, 0.1)}, "median=-1.0"),
        ({"deadline": 0.5}, "nobody could ever be in time"),
        ({"trace": "nowhere.csv"}, "does not exist"),
    ],
)
def test_bad_values_are_refused(settings, complaint):
    with pytest.raises((ValueError, FileNotFoundError), match=complaint):
        started(**settings)


def test_a_deadline_becomes_a_failure_rate_and_loses_that_share():
    clock = started(seconds_per_step=1.0, jitter=0.5, deadline=6.0, traffic=Traffic())
    steps, links = np.full(M, 5), np.linspace(0, 0.4, M)
    seen = clock.seen(Conditions(steps, links), 1)
    late = np.array([(clock.times(t, steps)[1] > 6).mean() for t in range(1, 1500)]).mean()
    assert 1 - (1 - seen.failure_rates) / (1 - links) == pytest.approx(late, abs=0.015)
    assert seen.link_rates is links
    hopeless = started(deadline=6.0, traffic=Traffic()).seen(Conditions(STEPS, links), 1)
    assert hopeless.available.tolist() == [True] * 6 + [False] * 2
    assert hopeless.failure_rates[:6] == pytest.approx(links[:6])


def plan_of(probabilities, counts, rates, steps=STEPS):
    weights = np.full(M, 1 / M)
    profiles = made_profiles(weights=weights, num_steps=steps, failure_rates=rates, accumulation=steps.astype(float))
    cohort = Selection(samplers.Importance(), int(counts.sum())).expected_cohort(profiles)
    cohort = type(cohort)(
        probabilities=probabilities, coefficients=np.ones(M), counts=counts, num_draws=int(counts.sum())
    )
    return made_plan(1, profiles, cohort, np.ones(M), 0.1)


class Everything(Channel):
    """Delivers all that was drawn, or what it is given."""

    def __init__(self, arrived=None):
        self.arrived = arrived

    def configure_delivery(self, plan, seed):
        return plan.cohort.counts if self.arrived is None else self.arrived


def test_the_first_arrivals_count_and_end_the_round():
    clock = started(seconds_per_step=[8.0, 1, 1, 1, 1, 1, 1, 1], take_first=3, traffic=Traffic())
    plan = plan_of(np.full(M, 1 / M), np.array([1, 1, 0, 2, 1, 0, 0, 1]), np.zeros(M))  # times 8, 2, 4, 5, 8
    counted = clock.delivered(plan, Everything(), 0)
    assert counted.tolist() == [0, 1, 0, 2, 0, 0, 0, 0]
    assert clock.charged(plan, counted, AnonymousMean(), "nothing", Asked()).round_time == 4
    lost = clock.delivered(plan, Everything(np.array([1, 0, 0, 0, 0, 0, 0, 0])), 0)
    assert clock.charged(plan, lost, AnonymousMean(), "nothing", Asked()).round_time == 8  # waited for all


def test_over_selection_has_the_predicted_bias():
    """Draw K' with replacement, take the first K: measured inclusion against the binomial formula."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(M, 3.0)), np.linspace(0.5, 0, M)
    clock = started(seconds_per_step=np.linspace(4, 1, M).tolist(), take_first=4, traffic=Traffic())
    counted, num_rounds, drawn = np.zeros(M), 20_000, 7
    times = clock.times(1, STEPS)[1]
    for _ in range(num_rounds):
        clients = rng.choice(M, drawn, p=p)
        arrived = clients[rng.random(drawn) >= q[clients]]
        counted += np.bincount(arrived[np.argsort(times[arrived], kind="stable")[:4]], minlength=M)
    plan = plan_of(p, np.bincount(rng.choice(M, drawn), minlength=M), q)
    predicted = drawn * p * (1 - q) * clock.first_factors(plan.profiles, plan.cohort, 1)
    assert np.abs(counted / num_rounds - predicted).sum() / predicted.sum() < 0.02


@pytest.mark.parametrize("availability", [DayNight(0.5, 0.4, 24, 4), OnOff(8.0, [2.0, 4.0, 8.0, 16.0] * 2)])
def test_who_is_there_has_the_stated_rate_and_memory(availability):
    if isinstance(availability, DayNight):
        there = np.array([availability(M, index, seed=1) for index in range(1, 2401)])
        assert there[5::24, :2].mean() > 0.8  # noon of the first zone
        tolerance = 0.04
    else:  # two neighbouring rounds of chains that start apart from each other
        rounds = 32 * np.arange(1, 400) + 20
        there, later = (np.array([availability(M, int(t) + k, seed=1) for t in rounds]) for k in (0, 1))
        assert (there & later).sum() / there.sum() == pytest.approx(1 - 1 / 8, abs=0.03)
        tolerance = 0.08
    assert there.any(axis=1).all()
    assert there.mean(axis=0) == pytest.approx(availability.rates(M, seed=1), abs=tolerance)


def test_a_trace_of_availability_is_followed_and_checked(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("round,client,available\n1,0,1\n1,1,0\n2,0,0\n2,1,true\n")
    trace = AvailabilityTrace(str(path))
    assert [trace(2, index, 0).tolist() for index in (1, 2, 3)] == [[True, False], [False, True], [True, False]]
    path.write_text("round,client,available\n1,0,0\n1,1,0\n")
    with pytest.raises(ValueError, match="nobody available in any round"):
        AvailabilityTrace(str(path))
    path.write_text("round,client,available\n1,0,1\n2,1,1\n")
    with pytest.raises(ValueError, match="without holes"):
        AvailabilityTrace(str(path))


@pytest.mark.parametrize("sampler", [samplers.Importance, samplers.Uniform, samplers.FullParticipation])
def test_nobody_is_drawn_who_is_away(sampler):
    weights, available = np.arange(1.0, M + 1) / 36, np.arange(M) % 3 > 0
    profiles = made_profiles(
        weights=weights,
        num_steps=STEPS,
        failure_rates=np.zeros(M),
        accumulation=np.ones(M),
        available=available,
    )
    selection = Selection(sampler(), 3)
    expected = selection.expected_cohort(profiles)
    assert expected.probabilities.sum() == pytest.approx(1)
    assert not expected.probabilities[~available].any()
    drawn = selection.configure_cohort(expected, np.random.default_rng(0)).counts
    assert not drawn[~available].any()
    assert drawn.sum() == expected.num_draws
    omega = expected.probabilities * expected.coefficients
    assert omega / omega.sum() == pytest.approx(profiles.reachable_weights)


def test_fedacs_makes_up_for_those_who_are_seldom_there(tmp_path):
    """Over a period of the trace the contributions are in proportion to w again, though each round lacks clients."""
    rows = [f"{t},{m},{int(m < 15 or (t + m) % 3 == 0)}" for t in range(1, 31) for m in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["round,client,available", *rows]))
    errors = []
    for sampler in (samplers.HeterogeneityAware(), samplers.Importance()):
        clock = Clock(availability=AvailabilityTrace(str(tmp_path / "a.csv")))
        schedule = HeterogeneitySchedule(num_steps=[5, 9] * 15, failure_rates=[0.2, 0.1] * 15)
        loop = small_loop(clock=clock, rounds=1, sampling=SamplerSelection(sampler, 6), schedule=schedule)
        loop.run(linear_module(), gaussian_federation(30))
        plans = [loop.planner.plan(index) for index in range(1, 31)]
        total = sum(plan.step_length * plan.effective_weights for plan in plans)
        errors.append(np.abs(total / total.sum() - loop.client_weights).sum())
    assert errors[0] < 0.02 < 0.3 < errors[1]


def play(rounds=6, resume=None, **settings):
    loop = small_loop(rounds=rounds, callbacks=[ComputationTime()], **settings)
    return loop, list(loop.iterate(linear_module(), gaussian_federation(), resume))


def test_costs_add_up_and_lost_work_counts():
    clock = Clock(seconds_per_step=[4.0] * 3 + [1.0] * 3, upload_rate=36.0, latency=0.5)
    _, results = play(clock=clock, schedule=HeterogeneitySchedule(groups=PAPER_GROUPS))
    speed, model = np.array([4.0] * 3 + [1.0] * 3), 4 * 18  # a linear layer of 5 x 3 and its bias
    device = clock_time = 0.0
    for result in results:
        drawn = result.plan.cohort.counts > 0
        seconds = result.plan.profiles.num_steps * speed
        device += seconds[drawn].sum()
        clock_time += (seconds + 0.5 + model / 36)[drawn].max()
        assert result.metrics["computation_time"] == pytest.approx(device)
        assert result.metrics["synchronous_time"] == pytest.approx(clock_time)
    sent = sum(int((result.plan.cohort.counts > 0).sum()) for result in results)
    assert results[-1].metrics["uplink_bytes"] == results[-1].metrics["downlink_bytes"] == sent * model
    assert sum(result.delivered.sum() for result in results) < sum(r.plan.cohort.counts.sum() for r in results)


@pytest.mark.parametrize("limit", ["local_steps", "computation_time", "synchronous_time", "uplink_bytes"])
def test_a_budget_ends_the_run_after_the_round_that_uses_it_up(limit):
    _, free = play(rounds=12)
    third = free[2].metrics[limit]
    for wanted, budget in ((3, third), (4, third + 0.5)):
        loop, results = play(rounds=12, budget=Budget(**{limit: budget}), evaluate_every=100)
        assert (len(results), loop.finished) == (wanted, True)
        assert "test_accuracy" in results[-1].metrics  # the last round is evaluated
        assert "test_accuracy" not in results[0].metrics


@pytest.mark.parametrize("settings", [{"local_steps": 0}, {"synchronous_time": -1.0}, {"uplink_bytes": float("nan")}])
def test_an_impossible_budget_is_refused(settings):
    with pytest.raises(ValueError, match="must be a positive number"):
        Budget(**settings)


def test_a_resumed_run_is_the_same_with_every_part_of_the_clock():
    def settings():
        clock = Clock(LogNormal(1.0, 0.6), upload_rate=200.0, jitter=0.4, deadline=90.0, take_first=2)
        clock.availability = OnOff(4.0, 3.0)
        return {"clock": clock, "budget": Budget(synchronous_time=400.0), "channel": ChannelFailures()}

    def measured(results):
        skip = ("wall_time", "training_seconds")
        return [{k: v for k, v in result.metrics.items() if k not in skip} for result in results]

    whole, rows = play(rounds=40, **settings())
    part, first = play(rounds=3, **settings())
    resumed, rest = play(rounds=40, resume=part.state_dict(), **settings())
    assert str(measured(first) + measured(rest)) == str(measured(rows))
    assert (resumed.state.weights == whole.state.weights).all()
    assert 3 < len(rows) < 40
