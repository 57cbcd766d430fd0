"""What absence does, against simulation: shares, numbers of draws, variance, limits, and the drift over a day."""

import numpy as np
import pytest

from fl_lightning import theory

RNG = np.random.default_rng(0)
SCORES = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
PRESENCE = np.array([0.02, 0.5, 0.1, 0.9, 0.0])
THERE = RNG.random((400_000, 5)) < PRESENCE
SOMEBODY = THERE[THERE.any(axis=1)]


def test_shares_of_those_who_take_the_place_of_others():
    amounts = SCORES * SOMEBODY
    simulated = (amounts / amounts.sum(axis=1, keepdims=True)).mean(axis=0)
    found = theory.replaced_shares(SCORES, PRESENCE)
    assert found == pytest.approx(simulated, abs=3e-3)
    assert found.sum() == pytest.approx(1.0, abs=1e-6)
    assert theory.replaced_shares(SCORES, np.ones(5)) == pytest.approx(SCORES, abs=1e-6)


def test_shares_of_clients_over_many_scales():
    rng = np.random.default_rng(1)
    scores, presence = rng.lognormal(sigma=3.0, size=300), rng.beta(0.55, 5.1, size=300)
    assert theory.replaced_shares(scores, presence).sum() == pytest.approx(1.0, abs=1e-4)


def test_how_many_are_there_and_drawn():
    numbers = THERE.sum(axis=1)
    simulated = np.bincount(numbers, minlength=6) / len(numbers)
    assert theory.numbers_there(PRESENCE) == pytest.approx(simulated, abs=3e-3)
    mean, fewer = theory.expected_draws(PRESENCE, 2)
    some = SOMEBODY.sum(axis=1)
    assert mean == pytest.approx(np.minimum(some, 2).mean(), abs=3e-3)
    assert fewer == pytest.approx((some < 2).mean(), abs=3e-3)


def test_variance_that_absence_adds():
    weights, presence = np.array([0.5, 0.3, 0.2]), np.array([0.02, 0.5, 1.0])
    steps = weights * (RNG.random((400_000, 3)) < presence) / presence
    assert steps.mean(axis=0) == pytest.approx(weights, abs=0.02)
    assert theory.absence_variance(weights, presence) == pytest.approx(steps.var(axis=0).sum(), rel=0.05)


def test_a_limit_on_absence_has_the_stated_bias():
    weights, presence = np.array([0.5, 0.3, 0.2]), np.array([0.02, 0.5, 1.0])
    steps = (weights * (RNG.random((400_000, 3)) < presence) / np.maximum(presence, 1 / 10)).mean(axis=0)
    assert theory.limited_presence_weights(weights, presence, 10) == pytest.approx(steps / steps.sum(), abs=0.01)


def test_a_day_moves_the_model_around_its_objective():
    """Two groups that are there at opposite hours: the model follows them, and its mean is the objective."""
    hours = np.arange(24)
    day = 0.5 + 0.5 * np.sin(2 * np.pi * hours / 24)
    steps = np.column_stack([day, 1 - day])
    optima = np.array([1.0, -1.0])
    drifts = []
    for rate in (0.2, 0.02, 0.002):
        model, seen = 0.0, []
        for index in range(24 * 2_000):
            model -= rate * steps[index % 24] @ (model - optima)
            seen.append(model)
        found = theory.periodic_weights(steps, rate)
        assert found @ optima == pytest.approx(np.array(seen[-24:]), abs=1e-6)
        assert found.sum(axis=1) == pytest.approx(np.ones(24))
        drifts.append(np.ptp(found[:, 0]))
    assert drifts[0] > 0.2
    assert drifts[1] / drifts[2] == pytest.approx(10, rel=0.1)  # in proportion to the rate
    assert theory.periodic_weights(steps, 0.002).mean(axis=0) == pytest.approx([0.5, 0.5], abs=1e-6)
    with pytest.raises(ValueError, match="shorter than 2"):
        theory.periodic_weights(steps, 3.0)
