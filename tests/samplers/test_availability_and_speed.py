"""Samplers that look at the clock: who is rare, who is fast, and who cannot be drawn at all."""

import itertools
import math

import numpy as np
import pytest

from fl_lightning import samplers
from fl_lightning.callbacks import HeterogeneitySchedule, SamplerSelection
from fl_lightning.system import Clock, Share
from made import made_profiles
from systems import gaussian_federation, linear_module, small_loop

T = np.array([1, 2, 3, 4, 5, 6, 7, 8])
W = np.full(8, 1 / 8)


def profiles(num_steps=T, **conditions):
    work = num_steps.astype(float)
    return made_profiles(weights=W, num_steps=num_steps, failure_rates=np.zeros(8), accumulation=work, **conditions)


def test_refl_takes_the_rarest_first_and_shares_the_last_places():
    presence = np.array([0.9, 0.9, 0.5, 0.5, 0.5, 0.1, 1.0, 1.0])
    cohort = SamplerSelection(samplers.LeastAvailable(), 3, absent="replaced").expected_cohort(
        profiles(presence=presence)
    )
    assert 3 * cohort.probabilities == pytest.approx([0, 0, 2 / 3, 2 / 3, 2 / 3, 1, 0, 0])


@pytest.mark.parametrize(
    "make", [samplers.FastestCandidates, samplers.Tiers, samplers.UtilityBased, samplers.TrackedRates]
)
def test_nobody_is_drawn_who_is_away(make):
    available = np.array([False, True] * 4)
    selection = SamplerSelection(make(), 3)
    known = profiles(available=available, presence=np.full(8, 0.5))
    selection.start(lambda: iter([profiles()]))
    for seed in range(20):
        cohort = selection.configure_cohort(selection.expected_cohort(known), np.random.default_rng(seed))
        assert cohort.counts[~available].sum() == 0
        assert 1 <= cohort.counts.sum() <= 3


def test_fedcs_draws_as_often_as_it_says():
    selection = SamplerSelection(samplers.FastestCandidates(5), 3)
    expected = selection.expected_cohort(profiles())
    drawn = [selection.configure_cohort(expected, np.random.default_rng(seed)).counts for seed in range(4000)]
    assert np.mean(drawn, axis=0) == pytest.approx(3 * expected.probabilities, abs=0.03)
    assert np.sum(drawn, axis=1).tolist() == [3] * 4000


def test_tifl_stops_at_its_credits():
    sampler = samplers.Tiers(2, credits=1)
    sampler.start(lambda: iter([profiles()]))
    sampler.probabilities(profiles(), 3)
    sampler._used = np.array([1, 0])
    assert sampler.probabilities(profiles(), 3) == pytest.approx([0] * 4 + [0.25] * 4)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (samplers.TrackedRates, {"beta": 1.0}),
        (samplers.CorrelationAware, {"bias": -1.0}),
        (samplers.FastestCandidates, {"num_candidates": 0}),
        (samplers.Tiers, {"interval": 0}),
        (samplers.UtilityBased, {"cut_off": 1.5}),
        (samplers.UtilityBased, {"least_exploration": 0.95}),
        (samplers.UtilityBased, {"most_work": 0.5}),
    ],
)
def test_impossible_settings_are_refused(make, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        make(**setting)


def test_pyramidfl_lets_the_fast_work_until_the_slowest_is_expected():
    offered, seconds = np.array([9, 40, 7, 8, 2, 9, 9, 9]), np.array([2.0, 0.25, 4.0, 8.0, 0.5, 4.0, 16.0, 2.0])
    known = profiles(num_steps=np.minimum(offered, 4), offered=offered, seconds=seconds)
    selection = SamplerSelection(samplers.UtilityBased(most_work=6.0), 3)
    chance = np.minimum(1, 3 * selection.expected_cohort(known).probabilities)
    length = 0.0
    for drawn in itertools.product([False, True], repeat=8):  # everybody alone, as the rule takes it
        likely = np.prod(np.where(drawn, chance, 1 - chance))
        length += likely * max(seconds[np.array(drawn)], default=0.0)
    length /= 1 - np.prod(1 - chance)
    steps = [min(o, math.floor(min(o, 4) * min(6, max(1, length / d)))) for o, d in zip(offered, seconds, strict=True)]
    assert selection.arrange(known, 1, 0).tolist() == steps
    assert steps[1] == 24
    assert steps[6] == 4
    assert SamplerSelection(samplers.UtilityBased(), 3).arrange(known, 1, 0) is known.num_steps


@pytest.mark.parametrize("steps", [0, 9])
def test_a_sampler_asks_for_no_more_than_clients_offer(steps):
    class Greedy(samplers.Importance):
        def asked_steps(self, profiles, num_draws):
            return np.where(np.arange(8) == 2, steps, profiles.num_steps)

    with pytest.raises(ValueError, match=f"Greedy.asked_steps asks client 2 for {steps} local steps, but it offers 3"):
        SamplerSelection(Greedy(), 3).arrange(profiles(), 1, 0)


def test_more_work_is_trained_reported_and_charged():
    clock, schedule = Clock([Share(0.5, 5.0), Share(0.5, 1.0)]), HeterogeneitySchedule(num_steps=9, failure_rates=0.2)
    rows = {}
    for most in (1.0, 11.0):
        sampling = SamplerSelection(samplers.UtilityBased(most_work=most), 3)
        loop = small_loop(rounds=4, sampling=sampling, clock=clock, schedule=schedule, max_local_steps=2)
        rows[most] = list(loop.iterate(linear_module(), gaussian_federation()))
    asked = [result.plan.profiles.num_steps for result in rows[11.0]]
    assert all((steps[:3] == 2).all() and steps.max() <= 9 for steps in asked)
    assert (asked[1][3:] > 2).all()  # a slow client is likely then
    work = [result.plan.profiles.accumulation for result in rows[11.0]]
    assert np.array_equal(work[1] > work[0].max(), asked[1] > 2)
    trained = [int(result.plan.profiles.num_steps[result.plan.cohort.clients].sum()) for result in rows[11.0]]
    assert [result.metrics["local_steps"] for result in rows[11.0]] == np.cumsum(trained).tolist()
    assert rows[1.0][-1].metrics["local_steps"] == 4 * 3 * 2
