from math import gamma, sqrt

import numpy as np
import pytest

from fl_lightning import theory
from reference import accumulation, closed_forms

# The static toy of the paper: 30 clients in 10 dimensions, T = m, q = 0.01 m.
T, W, ETA, DIMENSION = np.arange(1, 31), np.full(30, 1 / 30), 1e-3, 10
Q = 0.01 * T
SOLVERS = {"sgd": {}, "proximal": {"proximal": 1.0}, "decay": {"decay": 0.995}, "momentum": {"momentum": 0.3}}
# FedAvg, c-a-FedAvg, FedNova, FedACS at eta_1, FedACS at the calibrated eta_2; means over 200 draws of the optima.
REFERENCE = {
    "sgd": (0.2706, 0.3116, 0.0599, 0.0024, 0.0043),
    "proximal": (0.2690, 0.3099, 0.0599, 0.0024, 0.0062),
    "decay": (0.2627, 0.3033, 0.0597, 0.0023, 0.0039),
    "momentum": (0.2793, 0.3193, 0.0608, 0.0034, 0.0069),
}
# Mean length of a standard normal vector: E |sum_m d_m E_m| = |d| times this.
MEAN_NORM = sqrt(2) * gamma((DIMENSION + 1) / 2) / gamma(DIMENSION / 2)


def _calibration(accumulation: np.ndarray, at_new_rate: np.ndarray) -> float:
    return float(np.sum(W * (1 - Q) * accumulation) * np.sum(W / ((1 - Q) * at_new_rate)))


def _effective_weights(solver: dict[str, float]) -> list[np.ndarray]:
    step = theory.sgd_step(ETA, **solver)
    a, gains = closed_forms.probe_accumulation(T, step, ETA), theory.toy_gain(T, step)
    fedacs = theory.heterogeneity_aware_probabilities(W, Q, a)
    calibrated = theory.toy_gain(T, theory.sgd_step(ETA * _calibration(a, a), **solver))
    parts = [
        (W, 1.0, gains),
        (W, 1 / (1 - Q), gains),
        (W, 1 / a, gains),
        (fedacs, 1.0, gains),
        (fedacs, 1.0, calibrated),
    ]
    return [theory.effective_weights(theory.contribution(p, Q, c, b)) for p, c, b in parts]


@pytest.mark.parametrize("name", SOLVERS)
def test_bias_distances_of_the_static_toy(name: str) -> None:
    optima = np.random.default_rng(0).normal(size=(200, 30, DIMENSION))
    expected, drawn = [], []
    for omega in _effective_weights(SOLVERS[name]):
        expected.append(MEAN_NORM * np.linalg.norm(omega - W))
        drawn.append(np.mean([closed_forms.predicted_bias_distance(points, W, omega) for points in optima]))
    # The reference is a mean over 200 draws (1.6 % standard error) printed with four decimals.
    np.testing.assert_allclose(expected, REFERENCE[name], rtol=0.015, atol=5e-5)
    np.testing.assert_allclose(drawn, REFERENCE[name], rtol=0.05, atol=5e-5)


def test_ratios_between_solvers_are_those_of_the_reference() -> None:
    # Between solvers the errors of one algorithm are nearly parallel vectors, so that the draws cancel.
    distance = {name: np.linalg.norm(_effective_weights(SOLVERS[name])[0] - W) for name in SOLVERS}
    for name in SOLVERS:
        assert distance[name] / distance["sgd"] == pytest.approx(REFERENCE[name][0] / REFERENCE["sgd"][0], rel=1e-3)


def test_calibration_of_the_proximal_solver_needs_a_fixed_point() -> None:
    factor, a = 1.0, accumulation.proximal(T, ETA)
    guesses = []
    for _ in range(6):
        factor = _calibration(a, accumulation.proximal(T, ETA * factor))
        guesses.append(factor)
    assert guesses[0] == pytest.approx(1.7819, abs=5e-5)
    assert guesses[-1] == pytest.approx(1.7870, abs=5e-5)
    probabilities = theory.heterogeneity_aware_probabilities(W, Q, accumulation.proximal(T, ETA * factor))
    gains = theory.toy_gain(T, theory.sgd_step(ETA * factor, proximal=1.0))
    omega = theory.effective_weights(theory.contribution(probabilities, Q, 1.0, gains))
    assert MEAN_NORM * np.linalg.norm(omega - W) == pytest.approx(0.0043, abs=5e-5)


def test_gain_of_sgd_in_closed_form() -> None:
    np.testing.assert_allclose(theory.toy_gain(T, theory.sgd_step(0.1)), 1 - 0.9**T, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "closed_form"),
    [
        ({}, accumulation.sgd(T)),
        ({"momentum": 0.9}, accumulation.momentum(T, 0.9)),
        ({"momentum": 0.9, "nesterov": True}, accumulation.nesterov(T, 0.9)),
        ({"momentum": 0.9, "dampening": 0.3}, accumulation.dampened(T, 0.9, 0.3)),
        ({"dampening": 0.3}, accumulation.sgd(T)),
        ({"proximal": 2.0}, accumulation.proximal(T, 0.02)),
        ({"decay": 0.9}, accumulation.exponential_decay(T, 0.9)),
    ],
)
def test_the_probe_agrees_with_the_closed_forms(settings: dict, closed_form: np.ndarray) -> None:
    np.testing.assert_allclose(closed_forms.probe_accumulation(T, theory.sgd_step(0.01, **settings), 0.01), closed_form)


def test_the_probe_of_momentum_with_the_penalty_inside_the_buffer() -> None:
    step = theory.sgd_step(0.1, momentum=0.9, proximal=1.0)
    assert closed_forms.probe_accumulation(7, step, 0.1) == pytest.approx(14.356504, abs=1e-6)


def test_gain_is_the_accumulation_for_small_learning_rates() -> None:
    step = theory.sgd_step(1e-8, momentum=0.9, nesterov=True)
    np.testing.assert_allclose(theory.toy_gain(T, step) / 1e-8, accumulation.nesterov(T, 0.9), rtol=1e-5)


def test_convergence_point_of_a_simulated_federation() -> None:
    # FedNova with momentum under failures: local steps and draws simulated, nothing taken from the theory.
    generator, runs, draws = np.random.default_rng(0), 4000, 3
    steps, q = np.array([1, 4, 9, 20]), np.array([0.5, 0.0, 0.3, 0.1])
    w, optima, rate, rho = np.full(4, 0.25), generator.normal(size=(4, 2)), 0.01, 0.5
    accumulated = np.array([sum(2 - 0.5**k for k in range(count)) for count in steps])  # (1 - rho^j) / (1 - rho)
    coefficients = 5.0 / accumulated
    points = np.zeros((runs, 2))
    for _ in range(150):
        local, buffer = np.repeat(points[:, None], 4, axis=1), np.zeros((runs, 4, 2))
        for index in range(steps.max()):
            buffer = rho * buffer + (local - optima)
            local = local - rate * buffer * (index < steps)[:, None]
        counts = generator.multinomial(draws, w, size=runs)
        delivered = generator.random((runs, 4)) >= q
        factors = counts * delivered * coefficients / draws
        points = points + np.einsum("rm,rmd->rd", factors, local - points[:, None])
    predicted = closed_forms.convergence_point(
        optima, w, q, coefficients, theory.toy_gain(steps, theory.sgd_step(rate, momentum=rho))
    )
    error = points.std(axis=0) / np.sqrt(runs)
    assert (np.abs(points.mean(axis=0) - predicted) < 4 * error).all()
    # The spread is small enough for the test to tell FedNova's point from the target's.
    assert (np.abs(w @ optima - predicted) > 8 * error).any()


@pytest.mark.parametrize("steps", [0, -1, 2.5, np.nan, np.inf, [3, 0]])
def test_steps_must_be_whole_and_positive(steps: object) -> None:
    with pytest.raises(ValueError, match="num_steps must be whole numbers of at least 1"):
        theory.toy_gain(steps, theory.sgd_step(0.1))
