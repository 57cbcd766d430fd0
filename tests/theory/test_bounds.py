from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import brentq

from fl_lightning import theory
from reference import accumulation, bounds

NUM_CLIENTS, NUM_DRAWS, DIMENSION, NUM_RUNS = 5, 3, 4, 300


@dataclass(frozen=True)
class Quadratics:
    """Losses 0.5 (x - e_m)' diag(h_m) (x - e_m) with the constants of the paper's assumptions worked out by hand."""

    curvature: np.ndarray  # h, (M, d)
    optima: np.ndarray  # e, (M, d)
    weights: np.ndarray  # of the mixture whose constants are asked for, (M,)

    @property
    def smoothness(self) -> float:
        return float(self.curvature.max())

    @property
    def optimum(self) -> np.ndarray:
        return (self.weights @ (self.curvature * self.optima)) / (self.weights @ self.curvature)

    def gradient(self, points: np.ndarray) -> np.ndarray:
        return np.einsum("m,md,rmd->rd", self.weights, self.curvature, points[:, None] - self.optima)

    def gap(self, point: np.ndarray) -> float:
        def value(x: np.ndarray) -> float:
            return 0.5 * float(np.einsum("m,md,md->", self.weights, self.curvature, (x - self.optima) ** 2))

        return value(point) - value(self.optimum)

    @property
    def dissimilarity(self) -> tuple[float, float]:
        """beta squared and kappa squared; |a + b|^2 <= 2 |a|^2 + 2 |b|^2 unless all clients have one curvature."""
        at_optimum = self.curvature * (self.optimum - self.optima)
        kappa_squared = float(self.weights @ (at_optimum**2).sum(axis=1))
        if np.ptp(self.curvature) == 0:
            return 1.0, kappa_squared
        ratio = (self.weights @ self.curvature**2) / (self.weights @ self.curvature) ** 2
        return 2 * float(ratio.max()), 2 * kappa_squared


def _simulate(
    objectives: list[Quadratics],
    probabilities: np.ndarray,
    failure_rates: np.ndarray,
    num_steps: np.ndarray,
    learning_rate: float,
    noise: float,
    momentum: float = 0.0,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Mean over runs of |grad F|^2 before each round for each objective, (objectives, rounds).

    The objectives weigh the same clients differently; probabilities, failure rates and steps have one row per round.
    """
    generator, problem = np.random.default_rng(0), objectives[0]
    points, norms = np.tile(np.zeros(DIMENSION) if start is None else start, (NUM_RUNS, 1)), []
    for p, q, steps in zip(probabilities, failure_rates, num_steps, strict=True):
        norms.append([(objective.gradient(points) ** 2).sum(axis=1).mean() for objective in objectives])
        counts = generator.multinomial(NUM_DRAWS, p, size=NUM_RUNS)
        delivered = generator.random((NUM_RUNS, NUM_CLIENTS)) >= q
        local = np.repeat(points[:, None], NUM_CLIENTS, axis=1)
        buffer = np.zeros_like(local)
        for index in range(int(steps.max())):
            gradient = problem.curvature * (local - problem.optima)
            gradient += noise * generator.standard_normal(local.shape) / np.sqrt(DIMENSION)
            buffer = momentum * buffer + gradient
            local -= learning_rate * buffer * (index < steps)[:, None]
        points = points + np.einsum("rm,rmd->rd", counts * delivered / NUM_DRAWS, local - points[:, None])
    return np.array(norms).T


def _system(curvature_spread: float, scale: float = 1.0) -> tuple[Quadratics, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    curvature = scale * (1 - curvature_spread * generator.random((NUM_CLIENTS, DIMENSION)))
    w = generator.dirichlet(np.full(NUM_CLIENTS, 3.0))
    q, steps = generator.uniform(0, 0.5, NUM_CLIENTS), generator.integers(1, 9, NUM_CLIENTS)
    return Quadratics(curvature, generator.normal(size=(NUM_CLIENTS, DIMENSION)), w), w, q, steps


def test_drift_coefficient_and_its_limit() -> None:
    def printed(u: float) -> float:
        return u**2 / (1 - 2 * u**2) + 2 * u**3 / (1 - 2 * u**2) + u

    assert bounds.drift_coefficient(0.3) == pytest.approx(printed(0.3))
    assert bounds.drift_coefficient(0.0) == 0
    assert bounds.drift_coefficient(0.75) == np.inf
    assert bounds.largest_drift() == pytest.approx(0.19371, abs=5e-6)
    for beta_squared in (1.0, 2.5, 100.0):
        root = brentq(lambda u, b=beta_squared: b * printed(u) - 0.25, 0, 0.5, xtol=1e-14)
        assert bounds.largest_drift(beta_squared) == pytest.approx(root, rel=1e-10)
    # The paper's rho is one half more than this coefficient.
    u = 0.1
    assert (2 * u + 1) * (u**2 / (1 - 2 * u**2) + 0.5) == pytest.approx(bounds.drift_coefficient(u) + 0.5)


@pytest.mark.parametrize("noise", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_theorem_1_holds_on_simulated_quadratics(noise: float, spread: float, momentum: float, share: float) -> None:
    target, w, q, steps = _system(spread)
    a = accumulation.momentum(steps, momentum)
    surrogate = Quadratics(target.curvature, target.optima, theory.effective_weights(theory.contribution(w, q, 1.0, a)))
    beta_squared, kappa_squared = surrogate.dissimilarity
    learning_rate = share * bounds.largest_learning_rate(a, surrogate.smoothness, beta_squared)
    rounds = 150
    environment = [np.tile(row, (rounds, 1)) for row in (w, q, steps)]
    error, true_error = _simulate([surrogate, target], *environment, learning_rate, noise, momentum).mean(axis=1)
    bound = bounds.surrogate_bound(
        learning_rate=learning_rate,
        probabilities=w,
        failure_rates=q,
        accumulation=a,
        smoothness=surrogate.smoothness,
        num_rounds=rounds,
        initial_gap=surrogate.gap(np.zeros(DIMENSION)),
        beta_squared=beta_squared,
        kappa_squared=kappa_squared,
        noise_variance=noise**2,
    )
    assert error <= bound.total
    # And by Theorem 2 for the true objective, with the error of the surrogate as measured.
    chi2 = theory.chi_square(w, surrogate.weights)
    assert true_error <= bounds.true_objective_bound(
        chi2, kappa_squared, surrogate_error=float(error), beta_squared=beta_squared
    )


def test_the_printed_dissimilarity_term_is_exceeded_when_gradients_are_steep() -> None:
    problem, w, q, steps = _system(0.0, scale=100.0)
    a = accumulation.sgd(steps)
    surrogate = Quadratics(
        problem.curvature, problem.optima, theory.effective_weights(theory.contribution(w, q, 1.0, a))
    )
    _, kappa_squared = surrogate.dissimilarity
    learning_rate = bounds.largest_learning_rate(a, surrogate.smoothness)
    rounds = 200
    environment = [np.tile(row, (rounds, 1)) for row in (w, q, steps)]
    measured = _simulate([surrogate], *environment, learning_rate, 0.0, start=surrogate.optimum).mean()
    step = learning_rate * theory.step_length(theory.contribution(w, q, 1.0, a))
    assert measured > 10 * step * kappa_squared  # ten times what is printed, from a start at the optimum
    bound = bounds.surrogate_bound(
        learning_rate=learning_rate,
        probabilities=w,
        failure_rates=q,
        accumulation=a,
        smoothness=surrogate.smoothness,
        num_rounds=rounds,
        initial_gap=0.0,
        kappa_squared=kappa_squared,
    )
    assert measured <= bound.total


def test_theorem_2_is_tight_for_two_clients() -> None:
    # F_m = 0.5 (x -+ e)^2 with equal weights; FedAvg ends at sum Omega_m e_m.
    e, q, steps = 1.7, np.array([0.1, 0.4]), np.array([3, 11])
    w, optima = np.array([0.5, 0.5]), np.array([[-e], [e]])
    omega = theory.effective_weights(theory.contribution(w, q, 1.0, steps))
    kappa_squared = 4 * omega[0] * omega[1] * e**2
    learning_rate, x = 1e-7, 0.0
    gains = 1 - (1 - learning_rate) ** steps
    # The mean of the iterates obeys x <- x + sum_m w (1 - q) B_m (e_m - x); solved for its fixed point.
    pull = w * (1 - q) * gains
    x = float(pull @ optima[:, 0] / pull.sum())
    gradient_squared = x**2  # of F = 0.5 (F_1 + F_2)
    chi2 = theory.chi_square(w, omega)
    assert chi2 == pytest.approx(1 / (4 * omega[0] * omega[1]) - 1)
    assert gradient_squared == pytest.approx(bounds.true_objective_bound(chi2, kappa_squared), rel=1e-5)
    # The paper's last line has lost kappa squared.
    assert abs(gradient_squared - chi2) > 0.1
    # The distance to the true optimum 0 is what the corollary allows at least, since L = 1 in one dimension.
    assert abs(x) == pytest.approx(bounds.distance_lower_bound(gradient_squared**0.5, smoothness=1.0))
    # kappa squared is exact: sum Omega |grad F_m|^2 = |grad F~|^2 + kappa squared everywhere.
    for point in (-2.0, 0.3, 5.0):
        left = omega @ (point - optima[:, 0]) ** 2
        assert left == pytest.approx((omega @ (point - optima[:, 0])) ** 2 + kappa_squared)


def test_theorem_2_in_numbers() -> None:
    # (sqrt(eps) + sqrt(chi2 (beta2 eps + kappa2)))^2 + sigma2
    assert bounds.true_objective_bound(
        0.25, 3.0, surrogate_error=0.5, beta_squared=2.0, noise_variance=0.1
    ) == pytest.approx((0.5**0.5 + 1.0) ** 2 + 0.1)
    assert bounds.true_objective_bound(np.inf, 1.0) == np.inf


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("average", ["rounds", "steps"])
def test_theorem_4_holds_in_a_dynamic_federation(noise: float, average: str) -> None:
    problem, w, _, _ = _system(0.5)
    generator, rounds = np.random.default_rng(5), 200
    q = generator.uniform(0, 0.6, (rounds, NUM_CLIENTS))
    steps = generator.integers(1, 9, (rounds, NUM_CLIENTS))
    beta_squared, kappa_squared = problem.dissimilarity
    learning_rate = bounds.largest_learning_rate([8], problem.smoothness, beta_squared)
    probabilities = np.array([theory.heterogeneity_aware_probabilities(w, *row) for row in zip(q, steps, strict=True)])
    (measured,) = _simulate([problem], probabilities, q, steps, learning_rate, noise)
    lengths = 1 / (w / ((1 - q) * steps)).sum(axis=1)
    bound = bounds.fedacs_bound(
        learning_rate=learning_rate,
        weights=w,
        failure_rates=q,
        accumulation=steps,
        smoothness=problem.smoothness,
        initial_gap=problem.gap(np.zeros(DIMENSION)),
        beta_squared=beta_squared,
        kappa_squared=kappa_squared,
        noise_variance=noise**2,
        average=average,
    )
    assert np.average(measured, weights=lengths if average == "steps" else None) <= bound.total


def test_theorem_4_in_a_static_federation_is_theorem_1_under_its_law() -> None:
    w, q, steps = np.array([0.2, 0.3, 0.5]), np.array([0.1, 0.5, 0.0]), np.array([4, 9, 2])
    constants = {"smoothness": 2.0, "initial_gap": 3.0, "kappa_squared": 1.5, "noise_variance": 0.7}
    dynamic = bounds.fedacs_bound(
        learning_rate=0.005, weights=w, failure_rates=[q] * 50, accumulation=[steps] * 50, **constants
    )
    p = theory.heterogeneity_aware_probabilities(w, q, steps)
    static = bounds.surrogate_bound(
        learning_rate=0.005, probabilities=p, failure_rates=q, accumulation=steps, num_rounds=50, **constants
    )
    assert dynamic.initial == pytest.approx(static.initial)
    assert dynamic.dissimilarity == pytest.approx(static.dissimilarity)
    assert dynamic.noise == pytest.approx(static.noise)
    assert dynamic.total == pytest.approx(static.initial + static.dissimilarity + static.noise)


def test_calibrated_steps_make_both_averages_equal() -> None:
    generator = np.random.default_rng(0)
    w, q, steps = np.full(4, 0.25), generator.uniform(0, 0.5, (30, 4)), generator.integers(1, 9, (30, 4))
    rates = 1e-3 * (w / ((1 - q) * steps)).sum(axis=1)
    settings = {"learning_rate": rates, "weights": w, "failure_rates": q, "accumulation": steps}
    constants = {"smoothness": 1.0, "initial_gap": 1.0, "kappa_squared": 1.0, "noise_variance": 1.0}
    plain = bounds.fedacs_bound(**settings, **constants, average="rounds")
    weighted = bounds.fedacs_bound(**settings, **constants, average="steps")
    assert plain.total == pytest.approx(weighted.total)


def test_what_the_theorems_do_not_cover_is_refused() -> None:
    settings = {"probabilities": [1.0], "failure_rates": [0.0], "accumulation": [10], "smoothness": 1.0}
    with pytest.raises(ValueError, match=r"learning_rate must be at most 0.0193\d* for the bound to hold"):
        bounds.surrogate_bound(learning_rate=0.02, num_rounds=10, initial_gap=1.0, **settings)
    with pytest.raises(ValueError, match="num_rounds"):
        bounds.surrogate_bound(learning_rate=0.01, num_rounds=0, initial_gap=1.0, **settings)
    with pytest.raises(ValueError, match="beta_squared must be a finite number at least 1"):
        bounds.largest_drift(0.5)
    with pytest.raises(ValueError, match="chi_square must be at least 0"):
        bounds.true_objective_bound(-1.0, 1.0)
    with pytest.raises(ValueError, match=r"shape \(rounds, 2\), but they are \(2,\) and \(2,\)"):
        bounds.fedacs_bound(
            learning_rate=0.01,
            weights=[0.5, 0.5],
            failure_rates=[0, 0],
            accumulation=[1, 1],
            smoothness=1,
            initial_gap=1,
        )
