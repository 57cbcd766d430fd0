"""A by the probe equals the closed forms, the reference numbers, and what training really does."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.solvers import SGD, TorchOptimizer
from reference import accumulation

T = np.arange(1, 41)


@pytest.mark.parametrize(
    ("solver", "num_steps", "lr", "expected"),
    [  # the reference numbers of the specification
        (SGD(momentum=0.9), 7, 0.1, 23.046721),
        (SGD(momentum=0.9, nesterov=True), 7, 0.1, 27.7420489),
        (SGD(momentum=0.9, dampening=0.3), 7, 0.1, 17.697814),
        (SGD(proximal=1.0), 7, 0.01, 6.793465209301),
        (SGD(decay=0.005), 7, 0.1, 6.8958706381),
        (SGD(decay=0.005, decay_form="inverse"), 7, 0.1, 6.8972212598),
        (SGD(decay=0.005, decay_form="linear"), 7, 0.1, 6.895),
        (SGD(decay=0.005), 30, 0.1, 27.9232),
        (SGD(momentum=0.9, proximal=1.0), 7, 0.1, 14.356504),
    ],
)
def test_reference_numbers(solver, num_steps, lr, expected):
    assert solver.accumulation(np.array([num_steps]), lr)[0] == pytest.approx(
        expected, abs=6e-5 if num_steps > 7 else 1e-6
    )


@given(st.floats(0.01, 0.95), st.floats(0.01, 0.5))
@settings(max_examples=25, deadline=None)
def test_probe_equals_the_closed_forms(momentum, small):
    np.testing.assert_allclose(SGD(momentum).accumulation(T, 0.1), accumulation.momentum(T, momentum), rtol=1e-9)
    nesterov = SGD(momentum, nesterov=True).accumulation(T, 0.1)
    np.testing.assert_allclose(nesterov, accumulation.nesterov(T, momentum), rtol=1e-9)
    prox = SGD(proximal=small / 0.1).accumulation(T, 0.1)
    np.testing.assert_allclose(prox, accumulation.proximal(T, small), rtol=1e-9)


def test_weight_decay_belongs_to_the_loss():
    np.testing.assert_array_equal(SGD(weight_decay=0.1).accumulation(T, 0.1).round(9), T)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(), {}),
        (SGD(momentum=0.9), {"momentum": 0.9}),
        (SGD(momentum=0.8, dampening=0.2), {"momentum": 0.8, "dampening": 0.2}),
        (
            SGD(momentum=0.8, nesterov=True, weight_decay=0.01),
            {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
        ),
    ],
)
def test_steps_equal_those_of_torch(ours, theirs, rng):
    gradients = torch.from_numpy(rng.normal(size=(9, 5)))
    weights, parameter = torch.ones(5, dtype=torch.float64), torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    buffer = torch.empty(5, dtype=torch.float64)
    steps, optimizer = ours.begin(weights, buffer, [], 0.1), torch.optim.SGD([parameter], lr=0.1, **theirs)
    for gradient in gradients:
        buffer.copy_(gradient)
        steps.step()
        parameter.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weights, parameter.data, rtol=1e-12, atol=0)


def test_any_linear_torch_optimizer_has_an_accumulation():
    solver = TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=9.0, momentum=0.9, weight_decay=0.1))
    np.testing.assert_allclose(solver.accumulation(T, 0.3), SGD(momentum=0.9).accumulation(T, 0.3), rtol=1e-9)
    assert not solver.depends_on_learning_rate


def test_optimizers_without_accumulation_have_votes_on_request():
    assert TorchOptimizer(torch.optim.Adam).obstacle == "Adam is not linear in the gradients"
    clipped = TorchOptimizer(torch.optim.SGD, clip_norm=1.0)
    assert clipped.obstacle == "gradient clipping is not linear in the gradients"
    assert not clipped.votes
    assert clipped.voting().votes
    assert TorchOptimizer(torch.optim.AdamW, votes=True).votes


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop])
def test_votes_are_how_far_a_constant_gradient_moves_a_coordinate(kind):
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    settings = {"weight_decay": 0.0} if kind is torch.optim.AdamW else {}
    optimizer, path = kind([weight], lr=0.1, **settings), [0.0]
    for _ in range(int(T.max())):
        weight.grad = torch.full_like(weight, 5.0)
        optimizer.step()
        path.append(-weight.item() / 0.1)
    np.testing.assert_allclose(TorchOptimizer(kind).accumulation(T, 0.1), np.array(path)[T], rtol=1e-6)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        np.testing.assert_allclose(np.array(path)[T], T, rtol=1e-6)  # no start-up


def test_bad_values_are_named():
    for arguments, message in (
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"proximal": float("nan")}, "proximal=nan"),
        ({"nesterov": True}, "nesterov"),
        ({"decay_form": "cubic"}, "cubic"),
    ):
        with pytest.raises(ValueError, match=message):
            SGD(**arguments)
    with pytest.raises(ValueError, match="diverges"):
        SGD(proximal=30.0).accumulation(np.array([3]), 0.1)


def test_steps_along_gradients_are_those_through_the_buffer():
    rng = torch.Generator().manual_seed(0)
    solver, parameters = SGD(decay=0.1), [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    weights, buffer = torch.ones(5), torch.zeros(5)
    copied, direct = solver.begin(weights, buffer, [], 0.3), solver.begin(weights, buffer, parameters, 0.3)
    for _ in range(4):
        gradient = torch.randn(3, generator=rng)
        buffer.copy_(torch.cat([gradient, torch.zeros(2)]))
        copied.step()
        with torch.no_grad():
            direct.step_along(parameters, (gradient, None))
    assert torch.equal(torch.cat([parameter.data for parameter in parameters]), weights)
    for trimming in ({"momentum": 0.9}, {"weight_decay": 0.1}, {"proximal": 0.1}):
        assert SGD(**trimming).begin(weights, buffer, parameters, 0.3).step_along is None
