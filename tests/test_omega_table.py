"""Every algorithm against the objective it is predicted to optimise, by the basis trick.

To add an algorithm, add a line to ``ALGORITHMS``: name, sampler, aggregator, and the Omega it should have, as a
function of w, q, T and A of all clients (up to a factor). Parts are made afresh for each test.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from reference.quadratic_clients import System, measured_weights, predicted_weights, reported_weights

from fl_lightning import aggregators, samplers
from fl_lightning.aggregators import Aggregator
from fl_lightning.samplers import Sampler

TOLERANCE = 0.02

SPEC_STATIC = System(
    weights=np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2]),
    num_draws=3,
    learning_rate=2e-3,
    min_steps=np.array([1, 3, 5, 10, 20, 30]),
    max_steps=np.array([1, 3, 5, 10, 20, 30]),
    min_failure=np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0]),
    max_failure=np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0]),
)
SPEC_DYNAMIC = replace(
    SPEC_STATIC,
    min_steps=np.array([1, 1, 1, 20, 20, 20]),
    max_steps=np.array([10, 10, 10, 30, 30, 30]),
    min_failure=np.array([0.4, 0.4, 0.4, 0.0, 0.0, 0.0]),
    max_failure=np.array([0.5, 0.5, 0.5, 0.1, 0.1, 0.1]),
)


def random_system(seed: int, num_kinds: int, dynamic: bool) -> System:
    rng = np.random.default_rng(seed)
    steps, rates = rng.integers(2, 25, num_kinds), rng.uniform(0, 0.6, num_kinds)
    return System(
        weights=rng.dirichlet(np.full(num_kinds, 4.0)),
        num_draws=2,
        learning_rate=2e-3,
        min_steps=np.maximum(1, steps // 2) if dynamic else steps,
        max_steps=steps + steps // 2 if dynamic else steps,
        min_failure=rates / 2 if dynamic else rates,
        max_failure=np.minimum(0.8, 1.5 * rates) if dynamic else rates,
    )


SYSTEMS = {
    "spec-static": SPEC_STATIC,
    "spec-dynamic": SPEC_DYNAMIC,
    "random-static": random_system(1, 5, dynamic=False),
    "random-dynamic": random_system(2, 4, dynamic=True),
}


@dataclass(frozen=True)
class Algorithm:
    name: str
    sampler: Callable[[], Sampler]
    aggregator: Callable[[], Aggregator]
    omega: Callable[..., np.ndarray]  # of w, q, T, A


ALGORITHMS = [
    Algorithm("FedAvg", samplers.Importance, aggregators.AnonymousMean, lambda w, q, t, a: w * (1 - q) * a),
    Algorithm("FedACS", samplers.HeterogeneityAware, aggregators.AnonymousMean, lambda w, q, t, a: w * a / t),
    Algorithm("c-a-FedAvg", samplers.Importance, aggregators.CommunicationAware, lambda w, q, t, a: w * a),
]


def error(algorithm: Algorithm, system: System, num_rounds: int, copies: int, seed: int = 0) -> float:
    """L1 distance of the measured from the predicted weights."""
    measured = measured_weights(system, algorithm.sampler(), algorithm.aggregator(), num_rounds, copies, seed)
    return float(np.abs(measured - predicted_weights(system, algorithm.omega, infinitesimal=False)).sum())


def by_name(algorithm: Algorithm) -> str:
    return algorithm.name


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=by_name)
def test_measured_weights_are_the_predicted_ones(algorithm: Algorithm, system: str) -> None:
    assert error(algorithm, SYSTEMS[system], num_rounds=2000, copies=16) < TOLERANCE


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=by_name)
def test_reported_weights_are_the_predicted_ones(algorithm: Algorithm, system: str) -> None:
    reported = reported_weights(SYSTEMS[system], algorithm.sampler(), algorithm.aggregator(), copies=16)
    predicted = predicted_weights(SYSTEMS[system], algorithm.omega, infinitesimal=True)
    assert np.abs(reported - predicted).sum() < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=by_name)
def test_measured_weights_with_few_draws_over_many_rounds(algorithm: Algorithm, system: str) -> None:
    assert error(algorithm, SYSTEMS[system], num_rounds=100_000, copies=1) < TOLERANCE
