import numpy as np
import pytest

from fl_lightning import theory

W = np.array([0.1, 0.2, 0.3, 0.4])
Q = np.array([0.5, 0.0, 0.3, 0.1])
T = np.array([3, 10, 1, 25])
NORMS = np.array([1.0, 0.5, 2.0, 3.0])


def _random_laws() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(4), size=2000)


@pytest.mark.parametrize("norms", [None, NORMS])
def test_variance_optimal_law_beats_every_other(norms: np.ndarray | None) -> None:
    best = theory.variance_optimal_probabilities(W, Q, 1.0 if norms is None else norms)
    smallest = theory.variance_factor(W, best, Q, norms)
    assert best.sum() == pytest.approx(1)
    assert all(theory.variance_factor(W, law, Q, norms) >= smallest for law in _random_laws())
    # Cauchy-Schwarz gives the minimum in closed form.
    g = np.ones(4) if norms is None else norms
    assert smallest == pytest.approx(np.sum(W * g / np.sqrt(1 - Q)) ** 2)


@pytest.mark.parametrize("norms", [None, NORMS])
def test_work_aware_law_beats_every_other_in_variance_times_work(norms: np.ndarray | None) -> None:
    def cost(law: np.ndarray) -> float:
        return theory.variance_factor(W, law, Q, norms) * theory.expected_work(law, T)

    best = theory.work_aware_probabilities(W, Q, T, 1.0 if norms is None else norms)
    g = np.ones(4) if norms is None else norms
    assert cost(best) == pytest.approx(np.sum(W * g * np.sqrt(T / (1 - Q))) ** 2)
    assert all(cost(law) >= cost(best) for law in _random_laws())


def test_variance_times_work_of_fedacs_and_of_the_corrected_aggregator_agree() -> None:
    fedacs = theory.heterogeneity_aware_probabilities(W, Q, T)
    expected = np.sum(W * T) * np.sum(W / (1 - Q))
    for law in (fedacs, W):
        assert theory.variance_factor(W, law, Q) * theory.expected_work(law, T) == pytest.approx(expected)


def test_variance_times_work_in_the_setting_of_the_paper() -> None:
    generator = np.random.default_rng(1)
    optimal, plain = [], []
    for _ in range(2000):
        steps = np.r_[generator.integers(1, 11, 10), generator.integers(20, 31, 10)]
        q = np.r_[generator.uniform(0.4, 0.5, 10), generator.uniform(0, 0.1, 10)]
        w = np.full(20, 0.05)
        for law, values in ((theory.work_aware_probabilities(w, q, steps), optimal), (w, plain)):
            values.append(theory.variance_factor(w, law, q) * theory.expected_work(law, steps))
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
