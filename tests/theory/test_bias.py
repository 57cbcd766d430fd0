import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_lightning import theory
from reference import closed_forms

SIZES = st.integers(min_value=1, max_value=40)


def _columns(low: float, high: float, size: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, size, elements=st.floats(low, high, allow_nan=False))


@st.composite
def systems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, failure rates and accumulation of a random federation."""
    size = draw(SIZES)
    weights = draw(_columns(1e-3, 1, size))
    return weights / weights.sum(), draw(_columns(0, 0.99, size)), draw(_columns(0.1, 1000, size))


@given(systems())
def test_fedacs_optimises_the_target_objective(system: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    w, q, a = system
    p = theory.heterogeneity_aware_probabilities(w, q, a)
    amounts = theory.contribution(p, q, np.ones_like(w), a)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(theory.effective_weights(amounts), w, rtol=0, atol=1e-12)
    assert theory.chi_square(w, theory.effective_weights(amounts)) < 1e-12
    # Step length of FedACS as the paper writes it.
    assert theory.step_length(amounts) == pytest.approx(1 / np.sum(w / ((1 - q) * a)), rel=1e-12)


@given(systems())
def test_the_consistent_family_is_consistent(
    system: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    w, q, a = system
    p = np.sqrt(w) / np.sqrt(w).sum()
    c = theory.consistent_coefficients(w, p, q, a, scale=3.0)
    amounts = theory.contribution(p, q, c, a)
    np.testing.assert_allclose(theory.effective_weights(amounts), w, rtol=0, atol=1e-12)
    assert theory.step_length(amounts) == pytest.approx(3.0)


@given(systems())
def test_effective_rate_times_effective_steps_is_the_step_length(
    system: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    w, q, a = system
    c = 0.5 + w
    rate = closed_forms.effective_learning_rate(0.02, w, q, c)
    steps = closed_forms.effective_steps(w, q, c, a)
    assert rate * steps == pytest.approx(0.02 * theory.step_length(theory.contribution(w, q, c, a)), rel=1e-12)


def test_the_six_client_system_of_fedavg() -> None:
    # The basis trick: measured weights of FedAvg over 1e5 rounds, with the gain 1 - (1 - eta)^T for A.
    steps = np.array([1, 3, 5, 10, 20, 30])
    q = [0.45, 0.4, 0.3, 0.2, 0.1, 0]
    w = [0.1, 0.2, 0.15, 0.25, 0.1, 0.2]
    gains = 1 - (1 - 2e-3) ** steps
    omega = theory.effective_weights(theory.contribution(w, q, 1.0, gains))
    np.testing.assert_allclose(omega, [0.005, 0.034, 0.049, 0.189, 0.168, 0.555], atol=1.5e-3)
    aware = theory.effective_weights(theory.contribution(w, q, 1 / (1 - np.array(q)), gains))
    np.testing.assert_allclose(aware, [0.009, 0.051, 0.064, 0.211, 0.168, 0.498], atol=3e-3)
    nova = theory.effective_weights(theory.contribution(w, q, 1 / steps, gains))
    np.testing.assert_allclose(nova, [0.072, 0.158, 0.138, 0.261, 0.116, 0.256], atol=1e-3)


def test_calibrated_learning_rates_give_equal_steps() -> None:
    # Appendix E: eta_2, eta_3 and eta_5 from their closed forms make all step lengths equal to that of FedAvg.
    generator = np.random.default_rng(0)
    w = generator.dirichlet(np.ones(20))
    q, a = generator.uniform(0, 0.5, 20), generator.integers(1, 31, 20).astype(float)
    reference = theory.step_length(theory.contribution(w, q, 1.0, a))

    def length(p: np.ndarray, c: np.ndarray | float) -> float:
        return theory.step_length(theory.contribution(p, q, c, a))

    rate_2 = np.sum(w * (1 - q) * a) * np.sum(w / ((1 - q) * a))
    rate_3 = np.sum(w * (1 - q) * a) / np.sum(w * a)
    gamma = w * (1 - q) / np.sum(w * (1 - q))
    assert rate_2 * length(theory.heterogeneity_aware_probabilities(w, q, a), 1.0) == pytest.approx(reference)
    assert rate_3 * length(w, 1 / (1 - q)) == pytest.approx(reference)
    assert length(w, (gamma @ a) / a) == pytest.approx(reference)
    assert rate_2 >= 1 >= rate_3


def test_the_printed_constraint_of_fedacs_does_not_belong_to_its_solution() -> None:
    w, q, a = np.array([0.7, 0.3]), np.array([0.1, 0.4]), np.array([2.0, 9.0])
    p = theory.heterogeneity_aware_probabilities(w, q, a)
    rate = p * (1 - q) * a
    assert np.abs(rate - w * rate.sum()).max() < 1e-15  # the constraint meant
    assert np.abs(rate - w @ rate).max() > 0.1  # the constraint printed


def test_chi_square() -> None:
    w, omega = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])
    assert theory.chi_square(w, omega) == pytest.approx(np.sum(w**2 / omega) - 1)
    assert theory.chi_square([0.5, 0.5, 0], [0.2, 0.8, 0]) == pytest.approx(0.5625)
    assert theory.chi_square([0.5, 0.5], [1, 0]) == np.inf
    assert theory.chi_square([0, 1], [0.5, 0.5]) == pytest.approx(1)


def test_the_mean_chi_square_of_fedavg_in_the_dynamic_setting_of_the_paper() -> None:
    generator = np.random.default_rng(0)
    values = []
    for _ in range(4000):
        steps = np.r_[generator.integers(1, 11, 10), generator.integers(20, 31, 10)]
        q = np.r_[generator.uniform(0.4, 0.5, 10), generator.uniform(0, 0.1, 10)]
        w = np.full(20, 0.05)
        values.append(theory.chi_square(w, theory.effective_weights(theory.contribution(w, q, 1, steps))))
    assert np.mean(values) == pytest.approx(2.85, rel=0.03)


def test_wrong_values_are_named() -> None:
    with pytest.raises(ValueError, match=r"lengths differ: probabilities 2, failure_rates 3"):
        theory.contribution([0.5, 0.5], [0, 0, 0], 1, 1)
    with pytest.raises(ValueError, match=r"accumulation must be finite, but client 1 is not"):
        theory.contribution([0.5, 0.5], 0, 1, [1, np.nan])
    with pytest.raises(ValueError, match=r"failure_rates must be between 0 and 1, but client 0 is not"):
        theory.contribution([0.5, 0.5], [-0.1, 0], 1, 1)
    with pytest.raises(ValueError, match=r"probabilities must be at least 0, but clients 0, 1 are not"):
        theory.contribution([-0.5, -0.5], 0, 1, 1)
    with pytest.raises(ValueError, match="positive sum"):
        theory.effective_weights([0.0, 0.0])
    with pytest.raises(ValueError, match="one dimension"):
        theory.effective_weights([[1.0]])
    with pytest.raises(ValueError, match="at least one client"):
        theory.effective_weights([])
