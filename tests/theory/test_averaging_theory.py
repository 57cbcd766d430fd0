"""The variance that averaging leaves, against simulated chains."""

import numpy as np
import pytest

from fl_lightning import theory


def chain(contraction_low, contraction_high, num_chains=4000, num_rounds=400, seed=0):
    """Play y <- (1 - G) y + xi with random G, as rounds on quadratics are; return all states, (rounds, chains)."""
    rng = np.random.default_rng(seed)
    states = np.zeros((num_rounds, num_chains))
    for index in range(1, num_rounds):
        keep = rng.uniform(contraction_low, contraction_high, num_chains)
        states[index] = keep * states[index - 1] + rng.normal(size=num_chains)
    return states


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.9), (0.9, 0.98)])
@pytest.mark.parametrize("decay", [0.8, 0.95])
def test_an_exponential_average_keeps_the_predicted_share_of_the_variance(low, high, decay):
    states = chain(low, high)
    average = np.zeros(states.shape[1])
    for state in states:
        average = decay * average + (1 - decay) * state
    predicted = theory.exponential_average_factor(decay, (low + high) / 2) * states[-1].var()
    assert average.var() == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize("num_rounds", [2, 10, 50])
def test_a_mean_of_the_last_rounds_keeps_the_predicted_share_of_the_variance(num_rounds):
    states = chain(0.6, 0.9)
    predicted = theory.mean_factor(num_rounds, 0.75) * states[-1].var()
    assert states[-num_rounds:].mean(axis=0).var() == pytest.approx(predicted, rel=0.1)


def test_shares_outside_their_range_are_refused():
    with pytest.raises(ValueError, match=r"contraction=1.0 must be in \[0, 1\)"):
        theory.exponential_average_factor(0.9, 1.0)
    with pytest.raises(ValueError, match="num_rounds=0"):
        theory.mean_factor(0, 0.5)


@pytest.mark.parametrize("contraction", [0.0, 0.5, 0.9])
def test_any_sequence_of_rates_agrees_with_the_closed_forms_and_with_the_covariance(contraction):
    long = theory.average_factor([0.05] * 2000, contraction)
    assert long == pytest.approx(theory.exponential_average_factor(0.95, contraction))
    assert theory.average_factor([1 / r for r in range(1, 31)], contraction) == pytest.approx(
        theory.mean_factor(30, contraction)
    )
    rates = np.random.default_rng(0).uniform(0.1, 0.9, 12)
    rates[0] = 1.0
    shares = rates * np.append(np.cumprod((1 - rates)[::-1])[-2::-1], 1.0)  # of each model in the average
    gaps = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    assert theory.average_factor(rates, contraction) == pytest.approx(shares @ contraction**gaps @ shares)
