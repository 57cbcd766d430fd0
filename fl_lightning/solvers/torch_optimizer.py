"""Any optimizer of torch as a solver."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning.solvers.base import LocalSteps, Solver
from fl_lightning.types import IntVector, Vector


class TorchOptimizer(Solver):
    """Any optimizer of ``torch.optim``, fresh in each round.

    A comes from the same unit-gradient probe. It exists only where the displacement is linear in the gradients, which
    is tested by superposition when the solver is made.

    Args:
        optimizer: Makes the optimizer from the parameters; its learning rate is set by the loop.
        proximal: mu of FedProx, added to the gradient.
        clip_norm: Clip the gradient to this norm before each step; not linear.
        allow_nonlinear: Take a nonlinear optimizer (Adam, clipping) and count A = T, which is then only a guess.

    >>> solver = TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9))
    >>> solver.accumulation(np.array([7]), lr=0.1).round(6).tolist()
    [23.046721]
    """

    def __init__(
        self,
        optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizer],
        proximal: float = 0.0,
        clip_norm: float | None = None,
        allow_nonlinear: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.proximal, self.clip_norm = proximal, clip_norm
        self._without_decay = False
        self.linear = clip_norm is None and self._superposes()
        if not self.linear and not allow_nonlinear:
            reason = "gradient clipping" if clip_norm is not None else type(self._make([_scalar()], 1.0)).__name__
            raise ValueError(
                f"{reason} is not linear in the gradients, so it has no accumulation A, and no algorithm can correct "
                "for unequal work exactly: use a linear solver, or set allow_nonlinear=true to count A = T as a guess"
            )
        self.depends_on_learning_rate = self.linear and self._rate_changes_accumulation()

    def _make(self, parameters: Sequence[torch.nn.Parameter], lr: float) -> Optimizer:
        optimizer = self.optimizer(parameters)
        for group in optimizer.param_groups:
            group["lr"] = lr
            if self._without_decay and "weight_decay" in group:
                group["weight_decay"] = 0.0  # belongs to the local loss, not to A
        return optimizer

    @override
    def begin(
        self, weights: torch.Tensor, gradient: torch.Tensor, parameters: Sequence[torch.nn.Parameter], lr: float
    ) -> LocalSteps:
        """Start a fresh optimizer on the module's own parameters."""
        return _OptimizerSteps(self, self._make(parameters, lr), weights, gradient)

    @override
    def accumulation(self, num_steps: IntVector, lr: float) -> Vector:
        """Return A for each number of steps; T where the optimizer is nonlinear and that was allowed."""
        return super().accumulation(num_steps, lr) if self.linear else num_steps.astype(np.float64)

    @override
    def _probe(self, num_steps: int, lr: float, gradient: float = 1.0) -> Vector:
        self._without_decay = True
        try:
            return super()._probe(num_steps, lr, gradient)
        finally:
            self._without_decay = False

    def _superposes(self) -> bool:
        once, thrice = self._probe(8, 0.1), self._probe(8, 0.1, gradient=-3.0)
        return np.allclose(-3 * once, thrice, rtol=1e-9, atol=1e-12)

    def _rate_changes_accumulation(self) -> bool:
        return not np.allclose(self._probe(8, 0.1), self._probe(8, 0.2), rtol=1e-12, atol=0)


def _scalar() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


class _OptimizerSteps:
    def __init__(
        self, solver: TorchOptimizer, optimizer: Optimizer, weights: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        self.solver, self.optimizer = solver, optimizer
        self.weights, self.gradient = weights, gradient
        self.anchor = weights.clone() if solver.proximal else weights

    def step(self) -> None:
        if self.solver.proximal:
            self.gradient.add_(self.weights - self.anchor, alpha=self.solver.proximal)
        if self.solver.clip_norm is not None:
            self.gradient.mul_(min(1.0, self.solver.clip_norm / (float(self.gradient.norm()) + 1e-12)))
        self.optimizer.step()

    def narrow(self, num_rows: int) -> None:
        raise NotImplementedError("a torch optimizer steps one client at a time")
