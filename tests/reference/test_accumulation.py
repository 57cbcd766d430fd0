from collections.abc import Callable

import numpy as np
import pytest

from reference import accumulation as closed

T = np.array([1, 2, 7, 30])


def _impulse_response(
    num_steps: int,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    zero_buffer: bool = False,
    shrinkage: float = 0.0,
    schedule: Callable[[int], float] = lambda index: 1.0,
) -> np.ndarray:
    """Weights of the gradients e_1, ..., e_T in the displacement, by running the optimizer on vectors (eta = 1)."""
    position, buffer = np.zeros(num_steps), None
    for index, impulse in enumerate(np.eye(num_steps)):
        gradient = impulse + shrinkage * position
        if momentum or zero_buffer:
            if buffer is None and not zero_buffer:
                buffer = gradient.copy()
            else:
                buffer = momentum * (0 if buffer is None else buffer) + (1 - dampening) * gradient
            gradient = gradient + momentum * buffer if nesterov else buffer
        position = position - schedule(index) * gradient
    return -position


CASES = {
    "sgd": (closed.sgd, {}),
    "proximal": (lambda t: closed.proximal(t, 0.3), {"shrinkage": 0.3}),
    "proximal without strength": (lambda t: closed.proximal(t, 0.0), {}),
    "proximal at its limit": (lambda t: closed.proximal(t, 1.0), {"shrinkage": 1.0}),
    "momentum": (lambda t: closed.momentum(t, 0.9), {"momentum": 0.9}),
    "no momentum": (lambda t: closed.momentum(t, 0.0), {}),
    "nesterov": (lambda t: closed.nesterov(t, 0.9), {"momentum": 0.9, "nesterov": True}),
    "dampened": (lambda t: closed.dampened(t, 0.9, 0.3), {"momentum": 0.9, "dampening": 0.3}),
    "dampened without momentum": (lambda t: closed.dampened(t, 0.0, 0.3), {"dampening": 0.3}),
    "zero buffer": (
        lambda t: closed.dampened(t, 0.9, 0.3, first_step_dampened=True),
        {"momentum": 0.9, "dampening": 0.3, "zero_buffer": True},
    ),
    "exponential": (lambda t: closed.exponential_decay(t, 0.9), {"schedule": lambda i: 0.9**i}),
    "inverse": (lambda t: closed.inverse_decay(t, 0.1), {"schedule": lambda i: 1 / (1 + 0.1 * i)}),
    "linear": (lambda t: closed.linear_decay(t, 0.03), {"schedule": lambda i: 1 - 0.03 * i}),
}


@pytest.mark.parametrize(("closed_form", "solver"), CASES.values(), ids=CASES.keys())
def test_closed_form_is_the_sum_of_the_impulse_response(closed_form: Callable, solver: dict) -> None:
    expected = [_impulse_response(steps, **solver).sum() for steps in T]
    np.testing.assert_allclose(closed_form(T), expected, rtol=1e-12)
    assert float(closed_form(7)) == pytest.approx(expected[2], rel=1e-12)


WEIGHTS = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "dampened": {"momentum": 0.9, "dampening": 0.3},
    "dampened without momentum": {"dampening": 0.3},
}


@pytest.mark.parametrize("solver", WEIGHTS.values(), ids=WEIGHTS.keys())
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_gradient_weights_are_the_impulse_response(solver: dict, decay: float) -> None:
    weights = closed.gradient_weights(7, schedule=decay ** np.arange(7), **solver)
    np.testing.assert_allclose(weights, _impulse_response(7, schedule=lambda i: decay**i, **solver), rtol=1e-12)


def test_proximal_gradient_weights() -> None:
    np.testing.assert_allclose(
        closed.proximal_gradient_weights(7, 0.3), _impulse_response(7, shrinkage=0.3), rtol=1e-12
    )


def test_reference_numbers() -> None:
    assert closed.momentum(7, 0.9) == pytest.approx(23.046721, abs=1e-6)
    assert closed.nesterov(7, 0.9) == pytest.approx(27.7420489, abs=1e-7)
    assert closed.dampened(7, 0.9, 0.3) == pytest.approx(17.697814, abs=1e-6)
    assert closed.dampened(7, 0.9, 0.3, first_step_dampened=True) == pytest.approx(16.1327047, abs=1e-7)
    assert closed.proximal(7, 0.01) == pytest.approx(6.793465209301, abs=1e-12)
    assert closed.exponential_decay([7, 30], 0.995) == pytest.approx([6.8958706381, 27.9232], abs=5e-5)
    assert closed.inverse_decay([7, 30], 0.005) == pytest.approx([6.8972212598, 28.0177], abs=5e-5)
    assert closed.linear_decay(7, 0.005) == pytest.approx(6.895, abs=1e-12)


def test_the_proximal_form_keeps_its_digits_for_tiny_shrinkage() -> None:
    # 1 - (1 - alpha)^T computed as written would be off in the fourth digit here.
    alpha = 1e-13
    assert closed.proximal(10, alpha) == pytest.approx(10 - 45 * alpha, rel=1e-14)
