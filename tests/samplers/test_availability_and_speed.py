"""Samplers that look at the clock: who is rare, who is fast, and who cannot be drawn at all."""

import numpy as np
import pytest

from fl_lightning import samplers
from fl_lightning.callbacks import SamplerSelection
from made import made_profiles

T = np.array([1, 2, 3, 4, 5, 6, 7, 8])
W = np.full(8, 1 / 8)


def profiles(**conditions):
    return made_profiles(weights=W, num_steps=T, failure_rates=np.zeros(8), accumulation=T.astype(float), **conditions)


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
    ],
)
def test_impossible_settings_are_refused(make, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        make(**setting)
