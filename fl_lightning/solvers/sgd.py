"""SGD with the variants whose accumulation is known."""

from collections.abc import Sequence
from typing import Literal

import torch
from typing_extensions import override

from fl_lightning.solvers.base import LocalSteps, Solver
from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, Vector

DecayForm = Literal["exponential", "inverse", "linear"]


class SGD(Solver):
    r"""Stochastic gradient descent with the trimmings whose accumulation is linear.

    One step with gradient g, in the order of ``torch.optim.SGD``::

        g <- g + weight_decay * x + proximal * (x - x_0)
        buffer <- momentum * buffer + (1 - dampening) * g      (first step: buffer = g)
        x <- x - lr_t * (g + momentum * buffer if nesterov else buffer)

    Momentum starts from zero in each round. Weight decay belongs to the local loss, so it leaves A alone; the proximal
    term (FedProx) does not: :math:`A = (1 - (1-\eta\mu)^T) / (\eta\mu)`.

    Args:
        momentum: Weight of the buffer, in [0, 1).
        dampening: Damps the gradient that enters the buffer.
        nesterov: Look ahead along the buffer.
        weight_decay: Factor of the weights that is added to the gradient.
        proximal: mu of FedProx, the pull towards the weights the round began with.
        decay: Decay of the learning rate within a round, started again in each round: ``decay=0.005`` gives 0.995^t.
        decay_form: ``exponential`` (1 - decay)^t, ``inverse`` 1 / (1 + decay t) or ``linear`` 1 - decay t.

    >>> import numpy as np
    >>> SGD(momentum=0.9).accumulation(np.array([7]), lr=0.1).round(6).tolist()
    [23.046721]
    """

    stackable = True

    def __init__(
        self,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        proximal: float = 0.0,
        decay: float = 0.0,
        decay_form: DecayForm = "exponential",
    ) -> None:
        for name, value, below in (("momentum", momentum, 1), ("dampening", dampening, 1), ("decay", decay, 1)):
            if not 0 <= value < below:
                raise ValueError(f"{name}={value} must be in [0, {below})")
        for name, value in (("weight_decay", weight_decay), ("proximal", proximal)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value} must be a finite number >= 0")
        one_of("decay_form", decay_form, DecayForm)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError("nesterov=True needs momentum > 0 and dampening = 0")
        self.momentum, self.dampening = momentum, dampening
        self.nesterov = nesterov
        self.weight_decay, self.proximal = weight_decay, proximal
        self.decay, self.decay_form = decay, decay_form
        self.depends_on_learning_rate = proximal > 0

    @override
    def begin(
        self, weights: torch.Tensor, gradient: torch.Tensor, parameters: Sequence[torch.nn.Parameter], lr: float
    ) -> LocalSteps:
        return _SGDSteps(self, weights, gradient, lr)

    @override
    def accumulation(self, num_steps: IntVector, lr: float) -> Vector:
        """Return A for each number of steps; refuses step sizes at which the proximal term diverges."""
        if lr * self.proximal >= 2:
            raise ValueError(
                f"learning rate {lr:g} x proximal {self.proximal:g} = {lr * self.proximal:g} must stay below 2, or "
                "local training diverges: lower one of them, or calibrate on the server (calibration.apply=server)"
            )
        return super().accumulation(num_steps, lr)

    def rate_factor(self, step_index: int) -> float:
        """Return s_t, the learning rate of step t = 0, 1, ... as a multiple of the base rate."""
        if self.decay_form == "exponential":
            return (1 - self.decay) ** step_index
        if self.decay_form == "inverse":
            return 1 / (1 + self.decay * step_index)
        return max(0.0, 1 - self.decay * step_index)

    @override
    def _probe(self, num_steps: int, lr: float, gradient: float = 1.0) -> Vector:
        decayless = SGD(self.momentum, self.dampening, self.nesterov, 0.0, self.proximal, self.decay, self.decay_form)
        return super(SGD, decayless)._probe(num_steps, lr, gradient)


class _SGDSteps:
    """Steps a flat vector, or a stack of them, in place."""

    def __init__(self, solver: SGD, weights: torch.Tensor, gradient: torch.Tensor, lr: float) -> None:
        self.solver, self.lr = solver, lr
        self.weights, self.gradient = weights, gradient
        self.anchor = weights.clone() if solver.proximal else weights
        self.buffer: torch.Tensor | None = None
        self.step_index = 0
        plain = not (solver.momentum or solver.weight_decay or solver.proximal)
        self.step_along = self._step_along if plain else None

    def step(self) -> None:
        solver, gradient = self.solver, self.gradient
        if solver.weight_decay:
            gradient.add_(self.weights, alpha=solver.weight_decay)
        if solver.proximal:
            gradient.add_(self.weights, alpha=solver.proximal).sub_(self.anchor, alpha=solver.proximal)
        direction = gradient
        if solver.momentum:
            if self.buffer is None:
                self.buffer = gradient.clone()
            else:
                self.buffer.mul_(solver.momentum).add_(gradient, alpha=1 - solver.dampening)
            direction = gradient.add_(self.buffer, alpha=solver.momentum) if solver.nesterov else self.buffer
        self.weights.add_(direction, alpha=-self._next_rate())

    def _step_along(self, parameters: Sequence[torch.nn.Parameter], gradients: Sequence[torch.Tensor | None]) -> None:
        # One call: between two, another thread that trains a client may take the interpreter's lock.
        moved: list[torch.Tensor] = [
            weight for weight, gradient in zip(parameters, gradients, strict=True) if gradient is not None
        ]
        directions = [gradient for gradient in gradients if gradient is not None]
        torch._foreach_add_(moved, directions, alpha=-self._next_rate())

    def _next_rate(self) -> float:
        self.step_index += 1
        return self.lr * self.solver.rate_factor(self.step_index - 1)

    def narrow(self, num_rows: int) -> None:
        self.weights, self.gradient = self.weights[:num_rows], self.gradient[:num_rows]
        self.anchor = self.anchor[:num_rows]
        if self.buffer is not None:
            self.buffer = self.buffer[:num_rows]
