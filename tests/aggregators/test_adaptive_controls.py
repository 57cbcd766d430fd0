"""Control variates with a measured coefficient: when they are used, and that they change no objective."""

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import AdaptiveControlVariates
from fl_lightning.engine import Engine
from fl_lightning.samplers import HeterogeneityAware, Importance, Sampler
from fl_lightning.types import Cohort, Updates
from made import made_profiles
from reference.made_rounds import D, M, made_rounds, played
from reference.quadratic_clients import System, measured_weights
from systems import gaussian_federation, linear_module, made_plan, small_loop

SYSTEM = System(
    weights=np.array([0.1, 0.5, 0.15, 0.25]),
    num_draws=2,
    learning_rate=2e-3,
    min_steps=np.array([1, 3, 10, 20]),
    max_steps=np.array([1, 3, 10, 20]),
    min_failure=np.array([0.5, 0.4, 0.2, 0.0]),
    max_failure=np.array([0.5, 0.4, 0.2, 0.0]),
    server_scale=3.0,
)


def given(beta: float) -> AdaptiveControlVariates:
    """Return one whose coefficient is given instead of measured."""
    kind = type("Given", (AdaptiveControlVariates,), {"beta": property(lambda self: beta)})
    return kind()


@pytest.mark.parametrize("beta", [0.3, 0.8])
@pytest.mark.parametrize("sampler", [HeterogeneityAware, Importance])
def test_every_beta_has_the_objective_that_is_reported(sampler: type[Sampler], beta: float) -> None:
    steps, rates = SYSTEM.min_steps, SYSTEM.min_failure
    own = SYSTEM.weights * (1 - rates) * steps if sampler is Importance else SYSTEM.weights
    expected = (1 - beta) * own / own.sum() + beta * SYSTEM.weights
    measured = measured_weights(SYSTEM, sampler(), given(beta), num_rounds=400, copies=80)
    assert np.abs(measured - expected).sum() < 0.02
    profiles = next(SYSTEM.profiles(1, 1, 0))
    p = sampler().probabilities(profiles, 2)
    cohort = Cohort(probabilities=p, coefficients=np.ones(4), counts=np.zeros(4, dtype=np.int64), num_draws=2)
    plan = made_plan(1, profiles, cohort, given(beta).coefficients(profiles, cohort), 0.1)
    np.testing.assert_allclose(plan.effective_weights, expected)


def after(gradients: list[torch.Tensor], **settings: float) -> AdaptiveControlVariates:
    """Return one that has got all of two equal clients in several rounds, (clients, d) in each."""
    profiles = made_profiles(
        weights=np.full(2, 0.5), num_steps=np.ones(2, np.int64), failure_rates=np.zeros(2), accumulation=np.ones(2)
    )
    clients, ones = np.arange(2), np.ones(2, dtype=np.int64)
    cohort = Cohort(probabilities=np.full(2, 0.5), coefficients=np.ones(2), counts=ones, num_draws=2)
    plan = made_plan(1, profiles, cohort, np.ones(2), 0.1)
    aggregator = AdaptiveControlVariates(**settings)
    aggregator.setup(2, torch.zeros_like(gradients[0][0]))
    for each in gradients:
        deltas = each + torch.stack([aggregator.shift(client) for client in (0, 1)])
        updates = Updates(
            clients=clients, deltas=deltas, buffers=deltas[:, :0], num_steps=profiles.num_steps, losses=np.zeros(2)
        )
        aggregator.direction(updates, ones, plan)
    return aggregator


def test_gradients_that_stay_are_corrected_completely() -> None:
    own = torch.tensor([[3.0, 1.0], [1.0, -1.0]])
    aggregator = after([own] * 4)
    assert aggregator.beta == pytest.approx(1)
    torch.testing.assert_close(own[0] + aggregator.shift(0), torch.tensor([2.0, 0.0]))


def test_noise_is_hardly_used_and_gradients_that_turn_round_are_not_used_at_all() -> None:
    generator = torch.Generator().manual_seed(0)
    assert after([torch.randn(2, 500, generator=generator) for _ in range(20)]).beta < 0.05
    own = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    turning = after([own * (-1) ** index for index in range(6)], smoothing=0)
    assert turning.beta == 0
    assert not turning.shift(0).any()


def test_a_client_that_never_arrived_is_not_corrected() -> None:
    aggregator = given(1.0)
    aggregator.setup(M, torch.zeros(D))
    aggregator.server_control = torch.ones(D)
    aggregator.arrived[1] = True
    assert not aggregator.shift(0).any()
    assert torch.equal(aggregator.shift(1), torch.ones(D))


def test_the_server_control_is_the_mean_of_the_clients() -> None:
    aggregator = AdaptiveControlVariates()
    x = torch.zeros(D, dtype=torch.float64)
    aggregator.setup(M, x)
    for r in made_rounds():
        x = played(aggregator, r, x)
        torch.testing.assert_close(
            aggregator.server_control, torch.from_numpy(r.w) @ aggregator.client_controls.dense()
        )
    assert 0 < aggregator.beta <= 1


def test_all_ways_of_training_give_the_same() -> None:
    ends = []
    for mode in ("sequential", "threads", "stacked"):
        loop = small_loop(aggregator=AdaptiveControlVariates(), rounds=8, engine=Engine(mode, threads=2))
        ends.append(loop.run(linear_module(), gaussian_federation()).weights)
        assert loop.engine.choice.mode == mode
        assert loop.algorithm.aggregator.beta > 0
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-4, atol=1e-5)
