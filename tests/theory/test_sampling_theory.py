from itertools import permutations

import numpy as np
import pytest

from fl_lightning import theory
from reference.closed_forms import expected_work, exponential_average_factor, mean_factor

W = np.array([0.1, 0.2, 0.3, 0.4])
Q = np.array([0.5, 0.0, 0.3, 0.1])
T = np.array([3, 10, 1, 25])
NORMS = np.array([1.0, 0.5, 2.0, 3.0])


def _random_probabilities() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(4), size=2000)


@pytest.mark.parametrize("norms", [None, NORMS])
def test_variance_optimal_probabilities_beat_every_other(norms: np.ndarray | None) -> None:
    best = theory.variance_optimal_probabilities(W, Q, 1.0 if norms is None else norms)
    smallest = theory.variance_factor(W, best, Q, norms)
    assert best.sum() == pytest.approx(1)
    assert all(theory.variance_factor(W, p, Q, norms) >= smallest for p in _random_probabilities())
    # Cauchy-Schwarz gives the minimum in closed form.
    g = np.ones(4) if norms is None else norms
    assert smallest == pytest.approx(np.sum(W * g / np.sqrt(1 - Q)) ** 2)


@pytest.mark.parametrize("norms", [None, NORMS])
def test_work_aware_probabilities_beat_every_other_in_variance_times_work(norms: np.ndarray | None) -> None:
    def cost(p: np.ndarray) -> float:
        return theory.variance_factor(W, p, Q, norms) * expected_work(p, T)

    best = theory.work_aware_probabilities(W, Q, T, 1.0 if norms is None else norms)
    g = np.ones(4) if norms is None else norms
    assert cost(best) == pytest.approx(np.sum(W * g * np.sqrt(T / (1 - Q))) ** 2)
    assert all(cost(p) >= cost(best) for p in _random_probabilities())


def test_variance_times_work_of_fedacs_and_of_the_corrected_aggregator_agree() -> None:
    fedacs = theory.heterogeneity_aware_probabilities(W, Q, T)
    expected = np.sum(W * T) * np.sum(W / (1 - Q))
    for p in (fedacs, W):
        assert theory.variance_factor(W, p, Q) * expected_work(p, T) == pytest.approx(expected)


def test_variance_times_work_in_the_setting_of_the_paper() -> None:
    generator = np.random.default_rng(1)
    optimal, plain = [], []
    for _ in range(2000):
        steps = np.r_[generator.integers(1, 11, 10), generator.integers(20, 31, 10)]
        q = np.r_[generator.uniform(0.4, 0.5, 10), generator.uniform(0, 0.1, 10)]
        w = np.full(20, 0.05)
        for p, values in ((theory.work_aware_probabilities(w, q, steps), optimal), (w, plain)):
            values.append(theory.variance_factor(w, p, q) * expected_work(p, steps))
    assert np.mean(optimal) == pytest.approx(16.7, abs=0.3)
    assert np.mean(plain) == pytest.approx(21.9, abs=0.3)


def test_variance_factor_predicts_the_variance_of_a_draw() -> None:
    # One draw from p with factor w / (p (1 - q)) on a delivered unit vector e_m: E |x|^2 is the variance factor.
    generator = np.random.default_rng(2)
    p = theory.work_aware_probabilities(W, Q, T)
    clients = generator.choice(4, size=400_000, p=p)
    delivered = generator.random(len(clients)) >= Q[clients]
    squared = np.where(delivered, W[clients] / (p * (1 - Q))[clients], 0.0) ** 2
    assert squared.mean() == pytest.approx(theory.variance_factor(W, p, Q), rel=0.01)


def test_unwanted_clients_are_never_drawn_and_lost_ones_are_refused() -> None:
    assert theory.heterogeneity_aware_probabilities([0, 1], [0.5, 0.5], [1, 1]).tolist() == [0, 1]
    assert theory.consistent_coefficients([0, 1], [0, 1], [0.0, 0.5], [1, 4]).tolist() == [0, 0.5]
    assert theory.variance_factor([0, 1], [0, 1], [0, 0.5]) == 2
    assert theory.variance_factor([0.5, 0.5], [0, 1], [0, 0.5]) == np.inf
    with pytest.raises(ValueError, match="below 1, but client 1 is not"):
        theory.heterogeneity_aware_probabilities([0.5, 0.5], [0, 1], [1, 1])
    with pytest.raises(ValueError, match="accumulation must be above 0, but client 0 is not"):
        theory.heterogeneity_aware_probabilities([0.5, 0.5], [0, 0], [0, 1])
    with pytest.raises(ValueError, match="positive weight"):
        theory.variance_optimal_probabilities([0, 0], [0, 0])
    with pytest.raises(ValueError, match="above 0 wherever the weight is, but client 0 is not"):
        theory.consistent_coefficients([0.5, 0.5], [0, 1], [0, 0], [1, 1])


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
    predicted = exponential_average_factor(decay, (low + high) / 2) * states[-1].var()
    assert average.var() == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize("num_rounds", [2, 10, 50])
def test_a_mean_of_the_last_rounds_keeps_the_predicted_share_of_the_variance(num_rounds):
    states = chain(0.6, 0.9)
    predicted = mean_factor(num_rounds, 0.75) * states[-1].var()
    assert states[-num_rounds:].mean(axis=0).var() == pytest.approx(predicted, rel=0.1)


def test_a_contraction_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"contraction=1.0 must be in \[0, 1\)"):
        theory.average_factor([0.5], 1.0)


@pytest.mark.parametrize("contraction", [0.0, 0.5, 0.9])
def test_any_sequence_of_rates_agrees_with_the_closed_forms_and_with_the_covariance(contraction):
    long = theory.average_factor([0.05] * 2000, contraction)
    assert long == pytest.approx(exponential_average_factor(0.95, contraction))
    assert theory.average_factor([1 / r for r in range(1, 31)], contraction) == pytest.approx(
        mean_factor(30, contraction)
    )
    rates = np.random.default_rng(0).uniform(0.1, 0.9, 12)
    rates[0] = 1.0
    shares = rates * np.append(np.cumprod((1 - rates)[::-1])[-2::-1], 1.0)  # of each model in the average
    gaps = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    assert theory.average_factor(rates, contraction) == pytest.approx(shares @ contraction**gaps @ shares)


def enumerated_inclusion(p, num_draws):
    """Add up the probabilities of all orders in which clients can be drawn one after another."""
    inclusion = np.zeros(len(p))
    for order in permutations(np.flatnonzero(p).tolist(), num_draws):
        taken = np.cumsum([0.0, *p[list(order)]])[:-1]
        inclusion[list(order)] += np.prod(p[list(order)] / (1 - taken))
    return inclusion


@pytest.mark.parametrize(("num_clients", "num_draws", "alpha"), [(3, 2, 1), (6, 3, 0.3), (5, 1, 1), (8, 6, 2)])
def test_successive_inclusion_is_that_of_all_orders(num_clients, num_draws, alpha):
    p = np.random.default_rng(num_clients).dirichlet(np.full(num_clients, alpha))
    found = theory.successive_inclusion(p, num_draws)
    assert found == pytest.approx(enumerated_inclusion(p, num_draws), rel=2e-9)
    with_absent = theory.successive_inclusion([*p[:2], 0.0, *p[2:]], num_draws)
    assert np.delete(with_absent, 2) == pytest.approx(found, rel=1e-12)
    assert with_absent[2] == 0


def test_successive_inclusion_where_one_client_has_nearly_all_probability():
    few = theory.successive_inclusion([1 - 3e-12, 1e-12, 1e-12, 1e-12], 2)
    assert few == pytest.approx([1, *[1 / 3] * 3], rel=1e-8)
    assert theory.successive_inclusion([0.2, 0.3, 0.5], 3).tolist() == [1, 1, 1]
    assert theory.successive_inclusion([0.2] * 5, 2) == pytest.approx([0.4] * 5)
    with pytest.raises(ValueError, match="3 distinct clients cannot be drawn: 2 have a probability above 0"):
        theory.successive_inclusion([0.5, 0.5, 0.0], 3)


@pytest.mark.parametrize(("num_clients", "num_draws"), [(20, 6), (300, 20)])  # exactly, and by the limit
def test_successive_inclusion_is_that_of_draws(num_clients, num_draws):
    rng, rounds = np.random.default_rng(1), 20_000
    p = rng.dirichlet(np.full(num_clients, 0.5))
    keys = rng.exponential(size=(rounds, num_clients)) / p
    drawn = np.zeros_like(keys)
    np.put_along_axis(drawn, np.argpartition(keys, num_draws - 1, axis=1)[:, :num_draws], 1.0, axis=1)
    found = theory.successive_inclusion(p, num_draws)
    assert found.sum() == pytest.approx(num_draws)
    assert np.abs(found - drawn.mean(axis=0)).max() < 0.012 + 4 * np.sqrt(0.25 / rounds)
    assert np.abs(found - drawn.mean(axis=0)).sum() / num_draws < 0.02
