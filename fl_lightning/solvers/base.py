"""What a solver is, and the probe that finds its accumulation."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from lightning.pytorch import LightningModule

from fl_lightning.types import IntVector, Vector


class LocalSteps(Protocol):
    """A client's optimizer in one round, from fresh state; it may also be :class:`StepsAlong` or of an optimizer."""

    def step(self) -> None:
        """Move the weights in place by one step along the gradient that lies in the gradient buffer."""

    def narrow(self, num_rows: int) -> None:
        """Go on with the first rows alone, where several clients are stacked."""


@runtime_checkable
class StepsAlong(Protocol):
    """Steps that need nothing but the gradients, which saves copying them into the gradient buffer."""

    step_along: Callable[[Sequence[torch.nn.Parameter], Sequence[torch.Tensor | None]], None] | None


@runtime_checkable
class StepsOfOptimizer(Protocol):
    """Steps that an optimizer of torch makes, which the hooks of a module get to see."""

    optimizer: torch.optim.Optimizer


class Solver:
    """Makes the steps of one client and knows their accumulation A."""

    depends_on_learning_rate = False  # whether A changes with the learning rate
    linear = True  # whether the steps are linear in the gradients; where they are not, A is a guess
    stackable = False  # whether one object can step many clients at once, as rows
    _probed: tuple[float | None, Vector] | None = None

    def setup(self, module: LightningModule, lr: float | None) -> float:
        """Return the base learning rate of a run with this module, given that of the loop."""
        if lr is None:
            raise ValueError("lr=None is for solver='module' alone, which has a rate of its own: give lr a number")
        return lr

    def of(self, module: LightningModule) -> "Solver":
        """Return the solver for a copy of the module."""
        return self

    def round_factor(self, round_index: int) -> float:
        """Return the factor of a round on the base learning rate."""
        return 1.0

    def begin(
        self, weights: torch.Tensor, gradient: torch.Tensor, parameters: Sequence[torch.nn.Parameter], lr: float
    ) -> LocalSteps:
        """Start a client's round. ``parameters`` view into ``weights``, and their gradients into ``gradient``."""
        raise NotImplementedError

    def accumulation(self, num_steps: IntVector, lr: float) -> Vector:
        """Return A for each number of steps."""
        table = self._table(int(num_steps.max(initial=1)), lr)
        return table[num_steps]

    def _table(self, max_steps: int, lr: float) -> Vector:
        """Return A for T = 0 ... ``max_steps`` by a probe, kept until a longer one or another rate is asked for.

        Superposition: under a constant gradient of 1 from x = 0, a linear solver stands at -lr * A after T steps. The
        probe runs the very code that trains, so A cannot disagree with it.
        """
        key = lr if self.depends_on_learning_rate else None
        if self._probed is None or self._probed[0] != key or len(self._probed[1]) <= max_steps:
            self._probed = (key, self._probe(max(2 * max_steps, 64), lr))
        return self._probed[1]

    def _probe(self, num_steps: int, lr: float, gradient: float = 1.0) -> Vector:
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        weight.grad = torch.full((1,), gradient, dtype=torch.float64)
        unit = weight.grad.clone()
        steps = self.begin(weight.data, weight.grad, [weight], lr)
        path = [0.0]
        for _ in range(num_steps):
            weight.grad.copy_(unit)
            steps.step()
            path.append(weight.item())
        return -np.array(path) / lr
