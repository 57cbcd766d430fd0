import numpy as np
import pytest
import torch

from fl_lightning.data import Quadratic, QuadraticFederation
from fl_lightning.types import Cohort
from made import made_profiles
from systems import made_plan

WEIGHTS = np.array([0.5, 0.3, 0.2])
STEPS = np.array([1, 2, 4])
FAILURES = np.array([0.5, 0.25, 0.0])


def plan(probabilities):
    profiles = made_profiles(
        weights=WEIGHTS, num_steps=STEPS, failure_rates=FAILURES, accumulation=STEPS.astype(np.float64)
    )
    cohort = Cohort(probabilities=probabilities, coefficients=np.ones(3), counts=np.array([1, 1, 0]), num_draws=2)
    return made_plan(1, profiles, cohort, np.ones(3), 0.001)


def test_distances_to_both_optima():
    targets = np.random.default_rng(0).standard_normal((3, 4))
    federation = QuadraticFederation(targets)
    raw = WEIGHTS * (1 - FAILURES) * STEPS
    omega = raw / raw.sum()
    point = np.array([1.0, -2.0, 0.5, 0.0])
    measured = federation.measure(torch.tensor(point, dtype=torch.float32), plan(WEIGHTS))
    assert measured["distance"] == pytest.approx(np.sqrt(((point - WEIGHTS @ targets) ** 2).sum()), rel=1e-6)
    assert measured["surrogate_distance"] == pytest.approx(np.sqrt(((point - omega @ targets) ** 2).sum()), rel=1e-6)


def test_the_optima_coincide_when_the_sampling_makes_up_for_work_and_failures():
    ratio = WEIGHTS / ((1 - FAILURES) * STEPS)
    measured = QuadraticFederation(np.eye(3)).measure(torch.from_numpy(WEIGHTS), plan(ratio / ratio.sum()))
    assert measured["distance"] < 1e-12
    assert measured["surrogate_distance"] < 1e-12


def test_each_client_has_its_one_point_and_the_test_point_is_the_mean():
    federation = Quadratic().load(3)
    assert federation.num_clients == 30
    assert (federation.sizes == 1).all()
    points = torch.cat([federation.batch(m, np.array([0])) for m in range(30)])
    assert points.shape == (30, 10)
    np.testing.assert_allclose(points.numpy(), federation.targets, atol=1e-6)
    (test,) = federation.test_batches(100)
    np.testing.assert_allclose(test.numpy()[0], federation.targets.mean(axis=0), atol=1e-6)


def test_points_are_standard_normal_and_depend_on_the_seed():
    first, again, other = (Quadratic(500, 20).load(seed).targets for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert abs(first.mean()) < 0.03
    assert abs(first.std() - 1) < 0.03


@pytest.mark.parametrize("arguments", [(0, 10), (30, 0), (2.5, 3), (True, 3)])
def test_arguments_are_checked(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        Quadratic(*arguments)
    with pytest.raises(ValueError, match="one row for each client"):
        QuadraticFederation(np.zeros(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_toy_is_measured_in_any_precision(dtype):
    measured = QuadraticFederation(np.eye(3)).measure(torch.zeros(3, dtype=dtype), plan(np.full(3, 1 / 3)))
    assert measured["distance"] == pytest.approx(float(np.linalg.norm(WEIGHTS)))
