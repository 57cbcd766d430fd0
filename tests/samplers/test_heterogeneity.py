import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning import theory
from fl_lightning.callbacks import HeterogeneitySchedule, SamplerSelection
from fl_lightning.samplers import Consistent, HeterogeneityAware, Importance, Sampler, VarianceOptimal, WorkAware
from fl_lightning.types import Cohort, Profiles, RoundResult, Updates
from made import made_profiles
from systems import PAPER_GROUPS, gaussian_federation, linear_module, made_plan, small_loop

W = np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2])
ETA, M, K = 2e-3, 6, 3


def _profiles(weights, num_steps, failure_rates) -> Profiles:
    num_steps = np.asarray(num_steps, dtype=np.int64)
    return made_profiles(
        weights=np.asarray(weights, dtype=float),
        num_steps=num_steps,
        failure_rates=np.asarray(failure_rates),
        accumulation=num_steps.astype(float),
    )


def _dynamic(rng: np.random.Generator) -> Profiles:
    """The dynamic test of six clients: half slow and unreliable, half fast and reliable."""
    num_steps = np.r_[rng.integers(1, 11, 3), rng.integers(20, 31, 3)]
    return _profiles(W, num_steps, np.r_[rng.uniform(0.4, 0.5, 3), rng.uniform(0, 0.1, 3)])


def _result(profiles: Profiles, cohort: Cohort, delivered: np.ndarray) -> RoundResult:
    none = Updates(
        clients=np.empty(0, np.int64),
        deltas=torch.empty(0, 1),
        buffers=torch.empty(0, 0),
        num_steps=np.empty(0, np.int64),
        losses=np.empty(0),
    )
    return RoundResult(
        plan=made_plan(1, profiles, cohort, cohort.coefficients, ETA),
        delivered=delivered,
        updates=none,
        metrics={},
        training_seconds=0.0,
    )


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("make", [HeterogeneityAware, VarianceOptimal, WorkAware, lambda: Consistent(Importance())])
def test_effective_weights_are_the_wanted_ones_on_random_systems(make, num_clients: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(num_clients, 0.3)) + 1e-9
    weights /= weights.sum()
    profiles = _profiles(weights, rng.integers(1, 1000, num_clients), rng.uniform(0, 0.999, num_clients))
    cohort = SamplerSelection(make(), 3).expected_cohort(profiles)
    plan = made_plan(1, profiles, cohort, cohort.coefficients, 0.1)
    assert cohort.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(plan.effective_weights - weights).max() < 1e-12
    assert plan.chi_square < 1e-12


@pytest.mark.parametrize("make", [VarianceOptimal, WorkAware, lambda: Consistent(Importance())])
def test_the_consistent_family_steps_as_far_as_fedavg(make, rng: np.random.Generator) -> None:
    profiles = _dynamic(rng)
    cohort = SamplerSelection(make(), K).expected_cohort(profiles)
    arriving = (1 - profiles.failure_rates) * profiles.accumulation
    assert theory.step_length(cohort.probabilities * cohort.coefficients * arriving) == pytest.approx(W @ arriving)


def _basis_weights(sampler: Sampler, num_rounds: int, seed: int) -> np.ndarray:
    """Return the time average of the model over the second half of a run on F_m = |x - e_m|^2 / 2.

    Client m moves a share B = 1 - (1 - eta)^T of the way to its unit vector, so the average shows its weight.
    """
    rng, x, total = np.random.default_rng(seed), W.copy(), np.zeros(M)
    selection = SamplerSelection(sampler, K)

    def forecast():
        other = np.random.default_rng(seed + 1)
        return (_dynamic(other) for _ in range(1000))

    sampler.start(forecast)
    for index in range(num_rounds):
        profiles = _dynamic(rng)
        cohort = selection.configure_cohort(selection.expected_cohort(profiles), rng)
        delivered = np.where(rng.random(M) >= profiles.failure_rates, cohort.counts, 0)
        amount = delivered * cohort.coefficients * (1 - (1 - ETA) ** profiles.num_steps) / K
        x = x + amount - amount.sum() * x
        sampler.observe(_result(profiles, cohort, delivered))
        if index >= num_rounds // 2:
            total += x
    return total / (num_rounds - num_rounds // 2)


def test_estimates_find_the_unknown_rates_and_the_wanted_objective() -> None:
    sampler = HeterogeneityAware("estimated")
    assert np.abs(_basis_weights(sampler, 20_000, 1) - W).sum() < 0.04
    # E[(1-q) A]: T and q are independent within a client.
    wanted = np.r_[np.full(3, 0.55 * 5.5), np.full(3, 0.95 * 25)]
    assert sampler._work / sampler._drawn == pytest.approx(wanted, rel=0.05)


def test_estimates_are_right_for_independent_links_as_well(rng: np.random.Generator) -> None:
    sampler, rates = HeterogeneityAware("estimated"), np.full(2, 0.5)
    profiles = _profiles([0.9, 0.1], [4, 4], rates)
    sampler.probabilities(profiles, 20)
    for _ in range(500):
        counts = rng.multinomial(20, [0.9, 0.1])
        cohort = Cohort(probabilities=profiles.weights, coefficients=np.ones(2), counts=counts, num_draws=20)
        sampler.observe(_result(profiles, cohort, rng.binomial(counts, 1 - rates)))
    assert sampler.probabilities(profiles, 20) == pytest.approx([0.9, 0.1], abs=0.01)


def test_knowledge_is_checked() -> None:
    with pytest.raises(ValueError, match="knowledge='all'"):
        HeterogeneityAware("all")
    with pytest.raises(ValueError, match="prior=0"):
        HeterogeneityAware(prior=0)
    with pytest.raises(ValueError, match="start"):
        HeterogeneityAware("mean").probabilities(_dynamic(np.random.default_rng(0)), K)
    with pytest.raises(ValueError, match="client 1 is not"):
        HeterogeneityAware().probabilities(_profiles([0.5, 0.5], [1, 1], [0.0, 1.0]), K)
    assert HeterogeneityAware().probabilities(_profiles([0.0, 1.0], [1, 1], [0.0, 0.5]), K).tolist() == [0, 1]


def test_mean_knowledge_of_conditions_that_are_drawn_once_is_exact() -> None:
    schedule = HeterogeneitySchedule(groups=PAPER_GROUPS, dynamic=False)
    loop = small_loop(HeterogeneityAware("mean"), schedule=schedule, rounds=1)
    loop.run(linear_module(), gaussian_federation())
    conditions = schedule.configure_conditions(1, loop.planner.steps_per_epoch, loop.seed)
    profiles = _profiles(loop.client_weights, conditions.num_steps, conditions.failure_rates)
    expected = HeterogeneityAware().probabilities(profiles, K)
    assert loop.algorithm.sampling.sampler.probabilities(profiles, K) == pytest.approx(expected, rel=1e-12)
