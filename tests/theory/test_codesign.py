import numpy as np
import pytest

from fl_lightning import theory

# The setting of the paper's figure: 20 clients with two local steps, 10 with three, q from 0.01 to 0.3.
STEPS = np.repeat([2, 3], [20, 10])
RATES = 0.01 * np.arange(1, 31)


def _chi_square(weights: np.ndarray, q: np.ndarray, a: np.ndarray) -> float:
    omega = weights * (1 - q) * a
    omega = omega / omega.sum()
    return float(np.sum(weights**2 / omega) - 1)


def test_the_example_of_the_paper() -> None:
    design = theory.codesign(STEPS, RATES)
    np.testing.assert_allclose(design.failure_rates, np.repeat([0.01, 0.34], [20, 10]), atol=1e-12)
    assert design.learning_rate_factor == pytest.approx(0.978956, abs=5e-7)
    assert design.residual_chi_square == pytest.approx(0, abs=1e-15)
    assert design.constant == pytest.approx(1.98)
    np.testing.assert_array_equal(design.num_steps, STEPS)
    # The new federation is consistent for any weights, the old one is not.
    w = np.random.default_rng(0).dirichlet(np.ones(30))
    assert _chi_square(w, design.failure_rates, STEPS) < 1e-14
    assert _chi_square(w, RATES, STEPS) > 1e-2
    # With the new learning rate the step is as long as it was.
    w = np.full(30, 1 / 30)
    assert design.learning_rate_factor * np.sum(w * (1 - design.failure_rates) * STEPS) == pytest.approx(
        np.sum(w * (1 - RATES) * STEPS)
    )


def test_withholding_uploads_with_the_drop_probability_gives_the_target_rates() -> None:
    design = theory.codesign(STEPS, RATES, anchor=None)
    assert (design.drop_probabilities >= 0).all()
    assert design.constant == pytest.approx(2 * (1 - 0.20))
    np.testing.assert_allclose((1 - RATES) * (1 - design.drop_probabilities), 1 - design.failure_rates)
    # The anchor of the paper asks client 1 to become more reliable than it is.
    assert theory.codesign(STEPS, RATES).drop_probabilities[1] == pytest.approx(1 - 0.99 / 0.98)


def test_impossible_clients_are_named() -> None:
    with pytest.raises(ValueError, match=r"clients 1, 3 are infeasible.*= 9 of client 0"):
        theory.codesign([10, 5, 20, 8], [0.1, 0, 0, 0])
    theory.codesign([10, 5, 20, 8], [0.1, 0, 0, 0], anchor=None)
    theory.codesign([10, 5, 20, 8], [0.1, 0, 0, 0], anchor=1)
    with pytest.raises(ValueError, match=r"client 1 is infeasible: less than one local step"):
        theory.codesign([1, 1], [0.9, 0.0], mode="work")


def test_adjusted_work() -> None:
    q = np.array([0.0, 0.5, 0.3])
    design = theory.codesign([10, 10, 10], q, mode="work", weights=[0.5, 0.3, 0.2])
    np.testing.assert_allclose(design.exact_accumulation, 10 / (1 - q))
    np.testing.assert_array_equal(design.num_steps, [10, 20, 14])
    np.testing.assert_array_equal(design.failure_rates, q)
    np.testing.assert_array_equal(design.drop_probabilities, 0)
    w = np.array([0.5, 0.3, 0.2])
    assert 0 < design.residual_chi_square < 1e-3
    assert design.residual_chi_square == pytest.approx(_chi_square(w, q, np.array([10, 20, 14])))
    assert design.learning_rate_factor == pytest.approx(
        np.sum(w * (1 - q) * 10) / np.sum(w * (1 - q) * np.array([10, 20, 14]))
    )
    # Unweighted and without an anchor nobody works more than now.
    free = theory.codesign([10, 30, 10], q, anchor=None, mode="work")
    assert (free.accumulation <= [10, 30, 10]).all()


def test_a_homogeneous_federation_stays_as_it_is() -> None:
    design = theory.codesign([7, 7, 7], [0.2, 0.2, 0.2])
    np.testing.assert_allclose(design.failure_rates, 0.2)
    assert design.learning_rate_factor == pytest.approx(1)


def test_the_row_identity_that_the_paper_means() -> None:
    w, a = np.array([0.2, 0.3, 0.5]), np.array([2.0, 3.0, 7.0])
    matrix = (w[None, :] - np.eye(3)) * a[None, :]
    np.testing.assert_allclose(w @ matrix, 0, atol=1e-15)
    assert np.abs(matrix[0] + w[1:] @ matrix[1:]).max() > 0.1  # as printed
    np.testing.assert_allclose(matrix @ (1 - theory.codesign(a, [0.1, 0, 0]).failure_rates), 0, atol=1e-14)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="mode='q' is unknown: use 'failure' or 'work'"):
        theory.codesign([1, 2], mode="q")
    with pytest.raises(ValueError, match="anchor must be a client from 0 to 1 or None, but it is 2"):
        theory.codesign([1, 2], anchor=2)
    with pytest.raises(ValueError, match="below 1, but client 1 is not"):
        theory.codesign([1, 2], [0, 1])
