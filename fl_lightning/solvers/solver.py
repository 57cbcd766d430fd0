"""What a solver is, the probe that finds its accumulation, and the solvers of a loop: SGD and any torch optimizer."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from typing_extensions import Self, override

from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, Vector

DecayForm = Literal["exponential", "inverse", "linear"]
Clipping = Literal["norm", "value"]


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
    obstacle = ""  # why there is no A but only votes; empty where the steps are linear in the gradients
    votes = False  # whether an algorithm that depends on A may take the votes in its place
    stackable = False  # whether one object can step many clients at once, as rows
    clip: tuple[float, Clipping] | None = None  # of the gradient before each step
    _probed: tuple[float | None, Vector] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        """Forget A when a setting changes, also during a run."""
        super().__setattr__("_probed", None)
        super().__setattr__(name, value)

    def setup(self, module: LightningModule, lr: float | None) -> float:
        """Return the base learning rate of a run with this module, given that of the loop."""
        if lr is None:
            raise ValueError("lr=None is for solver='module' alone, which has a rate of its own: give lr a number")
        return lr

    def clipped(self, value: float | None, algorithm: Clipping = "norm") -> Self:
        """Return this solver with gradients clipped as ``Trainer(gradient_clip_val=...)`` clips them; None: as it is.

        A stays that of the steps without clipping, which is exact where nothing is clipped.
        """
        one_of("gradient_clip_algorithm", algorithm, Clipping)
        if value is None:
            return self
        if not 0 < value < float("inf"):
            raise ValueError(f"gradient_clip_val={value} must be a positive number, or None for no clipping")
        made = copy.copy(self)
        made.clip, made.stackable = (value, algorithm), False
        return made

    def clip_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Clip the gradients of one client's step, where that is asked for."""
        if self.clip is not None:
            clip = clip_grad_value_ if self.clip[1] == "value" else clip_grad_norm_
            clip(parameters, self.clip[0])

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
        """Return A for each number of steps; the votes where there is no A."""
        return self._table(int(num_steps.max(initial=1)), lr)[num_steps]

    def voting(self) -> Self:
        """Return this solver with votes in place of A, where it has none."""
        made = copy.copy(self)
        made.votes = True
        return made

    def _table(self, max_steps: int, lr: float) -> Vector:
        """Return A for T = 0 ... ``max_steps`` by a probe, kept until a longer one or another rate is asked for.

        Superposition: under a constant gradient of 1 from x = 0, a linear solver stands at -lr * A after T steps. The
        probe runs the very code that trains, so A cannot disagree with it. Of any other solver this is the vote of a
        client, how far it moves a coordinate whose gradient keeps its sign: T for Adam, T up to its start-up for
        RMSprop.
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
        for name, value in (("momentum", momentum), ("dampening", dampening), ("decay", decay)):
            if not 0 <= value < 1:
                raise ValueError(f"{name}={value} must be in [0, 1)")
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

    @property
    def depends_on_learning_rate(self) -> bool:  # type: ignore[override]
        """Whether A changes with the learning rate."""
        return self.proximal > 0

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


class TorchOptimizer(Solver):
    """Any optimizer of ``torch.optim``, fresh in each round.

    A comes from the same unit-gradient probe. It exists only where the displacement is linear in the gradients, which
    is tested by superposition when the solver is made.

    Args:
        optimizer: Makes the optimizer from the parameters; its learning rate is set by the loop.
        proximal: mu of FedProx, added to the gradient.
        clip_norm: Clip the gradient to this norm before each step; not linear.
        votes: Where the optimizer has no A (Adam, clipping), let algorithms that depend on A take the votes of the
            clients in its place: their shares in the step, not in the objective.

    >>> solver = TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9))
    >>> solver.accumulation(np.array([7]), lr=0.1).round(6).tolist()
    [23.046721]
    """

    def __init__(
        self,
        optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizer],
        proximal: float = 0.0,
        clip_norm: float | None = None,
        votes: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.proximal, self.clip_norm = proximal, clip_norm
        self.votes = votes
        self._without_decay = False
        once, thrice = self._probe(8, 0.1), self._probe(8, 0.1, gradient=-3.0)
        if clip_norm is not None or not np.allclose(-3 * once, thrice, rtol=1e-9, atol=1e-12):
            scalar = torch.nn.Parameter(torch.zeros(1))
            reason = "gradient clipping" if clip_norm is not None else type(optimizer([scalar])).__name__
            self.obstacle = f"{reason} is not linear in the gradients"
        self.depends_on_learning_rate = not self.obstacle and not np.allclose(
            self._probe(8, 0.1), self._probe(8, 0.2), rtol=1e-12, atol=0
        )

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
        return _OptimizerSteps(self, self._make(parameters, lr), weights, gradient)

    @override
    def _probe(self, num_steps: int, lr: float, gradient: float = 1.0) -> Vector:
        self._without_decay = True
        try:
            return super()._probe(num_steps, lr, gradient)
        finally:
            self._without_decay = False


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
