"""The average over rounds: its weights, its place in a run, and that it survives a resume."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning.module import FederatedModule
from fl_lightning.server.averaging import ExponentialAverage, NoAverage, TailAverage
from fl_lightning.types import ModelState
from systems import gaussian_federation, linear_module, small_loop


def weights_of_rounds(averaging, num_rounds):
    """Return the weight of each round in the average, by feeding unit vectors."""
    for index in range(1, num_rounds + 1):
        one = torch.zeros(num_rounds, dtype=torch.float64)
        one[index - 1] = 1
        averaging.update(ModelState(one, torch.empty(0)), index)
    return averaging.state.weights.numpy()


def test_an_exponential_average_forgets_geometrically_after_its_warm_up():
    found = weights_of_rounds(ExponentialAverage(0.5, warm_up=9), 40)
    assert found.sum() == pytest.approx(1)
    assert found[-1] == pytest.approx(0.5)
    np.testing.assert_allclose(found[20:-1] / found[21:], 0.5)
    early = weights_of_rounds(ExponentialAverage(0.95, warm_up=9), 6)
    assert early[0] < early[-1]  # the first models are forgotten fast


@pytest.mark.parametrize("power", [0, 1, 3])
def test_a_tail_average_weighs_rounds_by_a_power(power):
    found = weights_of_rounds(TailAverage(power), 400)
    wanted = np.arange(1, 401.0) ** power
    np.testing.assert_allclose(found[50:], (wanted / wanted.sum())[50:], rtol=0.1)
    assert found.sum() == pytest.approx(1)


def test_the_averaged_model_is_evaluated_beside_the_raw_one():
    loop = small_loop(rounds=5, evaluate_every=2, averaging=TailAverage(0))
    results = list(loop.iterate(linear_module(), gaussian_federation()))
    assert ["averaged_accuracy" in result.metrics for result in results] == [False, True, False, True, True]
    assert results[-1].metrics["averaged_loss"] != results[-1].metrics["test_loss"]
    other = small_loop(rounds=5)
    states = [other.state.weights for _ in other.iterate(linear_module(), gaussian_federation())]
    torch.testing.assert_close(loop.algorithm.averaging.state.weights, torch.stack(states).mean(dim=0))


def test_nothing_is_averaged_where_nobody_wants_it():
    loop = small_loop(averaging=NoAverage())
    results = list(loop.iterate(linear_module(), gaussian_federation()))
    assert loop.algorithm.averaging.state is None
    assert not any(name.startswith("averaged") for name in results[-1].metrics)


def test_buffers_of_batchnorm_are_averaged_and_all_of_it_is_resumed():
    def made():
        torch.manual_seed(0)
        return FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)

    whole, first, second = (small_loop(rounds=6) for _ in range(3))
    whole.run(made(), gaussian_federation())
    for result in first.iterate(made(), gaussian_federation()):
        if result.plan.index == 3:
            break
    second.run(made(), gaussian_federation(), resume_from=first.state_dict())
    assert len(whole.algorithm.averaging.state.buffers) == 8
    assert torch.equal(whole.algorithm.averaging.state.buffers, second.algorithm.averaging.state.buffers)
    assert torch.equal(whole.algorithm.averaging.state.weights, second.algorithm.averaging.state.weights)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExponentialAverage(1.0), "decay=1.0 must be in"),
        (lambda: ExponentialAverage(0.9, warm_up=-1), "warm_up=-1"),
        (lambda: TailAverage(float("nan")), "power=nan"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
