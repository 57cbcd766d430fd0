"""The optimizer that a module configures for itself, as a local solver."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override

from fl_lightning.solvers.solver import LocalSteps, Solver
from fl_lightning.types import IntVector, Vector


@dataclass(frozen=True, kw_only=True)
class Configured:
    """A module's own optimizer and, if it has one, the scheduler of its learning rate."""

    optimizer: Optimizer
    scheduler: LRScheduler | None = None
    interval: str = "epoch"  # step: after local steps; epoch: after rounds
    frequency: int = 1

    @property
    def base_rate(self) -> float:
        """The rate of the first parameter group before any scheduler touched it."""
        group = self.optimizer.param_groups[0]
        return float(group.get("initial_lr", group["lr"]))


def configured(module: LightningModule) -> Configured:
    """Make the module's optimizer and scheduler, fresh; refuse none, and more than one solver can stand for."""
    name = f"{type(module).__name__}.configure_optimizers"
    optimizers, schedulers = split(module.configure_optimizers())
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        kinds = ", ".join(type(entry).__name__ for entry in optimizers) or "nothing"
        raise ValueError(f"{name} must return one optimizer to be used in a federation, but returned {kinds}")
    if len(schedulers) > 1:
        raise ValueError(
            f"{name} returns {len(schedulers)} schedulers, but one is wanted: combine them by "
            "torch.optim.lr_scheduler.ChainedScheduler or SequentialLR"
        )
    if not schedulers:
        return Configured(optimizer=optimizers[0])
    settings = schedulers[0] if isinstance(schedulers[0], dict) else {"scheduler": schedulers[0]}
    scheduler = settings["scheduler"]
    if isinstance(scheduler, ReduceLROnPlateau) or settings.get("reduce_on_plateau"):
        raise ValueError(
            f"{name} returns a scheduler that waits for a metric ({type(scheduler).__name__}), which no client knows: "
            "use one that depends on steps or epochs alone"
        )
    interval, frequency = settings.get("interval", "epoch"), settings.get("frequency", 1)
    if interval not in ("step", "epoch") or not isinstance(frequency, int) or frequency < 1:
        raise ValueError(
            f"{name} returns a scheduler with interval={interval!r} and frequency={frequency!r}: "
            "the interval must be 'step' or 'epoch', the frequency an integer from 1"
        )
    return Configured(optimizer=optimizers[0], scheduler=scheduler, interval=interval, frequency=frequency)


def split(returned: object) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and the schedulers of each form that Lightning takes."""
    if returned is None:
        return [], []
    if isinstance(returned, dict):
        scheduler = returned.get("lr_scheduler")
        return [returned.get("optimizer")], [] if scheduler is None else [scheduler]
    if isinstance(returned, (list, tuple)):
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
            schedulers = returned[1] if isinstance(returned[1], (list, tuple)) else [returned[1]]
            return list(returned[0]), list(schedulers)
        pairs = [split(entry) for entry in returned]
        return [one for first, _ in pairs for one in first], [one for _, second in pairs for one in second]
    return [returned], []


def has_optimizer(module: LightningModule) -> bool:
    """Return whether the module says how it wants to be optimized."""
    return is_overridden("configure_optimizers", module)


class _Rates:
    """Learning rates of a module's optimizer, shared by the solvers of the module's copies."""

    base = 1.0  # of the first parameter group
    first = 1.0  # the same as a scheduler of epochs, if there is one, has it in the first round


class ModuleOptimizer(Solver):
    r"""The module's own ``configure_optimizers``, made fresh for each client in each round.

    The rate of the run is the module's own: that of its first parameter group is the base rate :math:`\eta_1`, and each
    group's rate is multiplied by :math:`\eta / \eta_1`, where the calibrated rate :math:`\eta` differs from it. A
    scheduler with ``interval="step"`` is stepped after each local step and starts anew in each round. One with
    ``interval="epoch"`` (Lightning's default) is stepped once per round, because an epoch is a round: it changes the
    base rate of the round for all clients alike.

    A comes from a probe of the optimizer and its scheduler under a unit gradient. It exists where the displacement is
    linear in the gradients and the same for all parameter groups; elsewhere the probe of the first group gives votes.

    Args:
        votes: Where the optimizer has no A (Adam), let algorithms that depend on A take the votes of the clients in its
            place: their shares in the step, not in the objective.
    """

    def __init__(self, votes: bool = False) -> None:
        self.votes = votes
        self._module: LightningModule | None = None
        self._rates = _Rates()
        self._factors: list[float] = []

    @override
    def setup(self, module: LightningModule, lr: float | None) -> float:
        """Take over the module's optimizer and return its learning rate."""
        if not has_optimizer(module):
            raise ValueError(f"solver='module' needs configure_optimizers, which {type(module).__name__} does not have")
        self._module, self._probed = module, None
        self._factors = []
        own = self._configure()
        name = type(own.optimizer).__name__
        if own.base_rate <= 0:
            raise ValueError(f"{name} of {type(module).__name__} has the learning rate {own.base_rate}: it must be > 0")
        self._rates.base, self._rates.first = own.base_rate, _epoch_rate(own, 1)
        obstacle = self._obstacle()
        self.obstacle = "" if obstacle is None else f"{name} of {type(module).__name__} {obstacle}"
        return self._rates.base

    @override
    def of(self, module: LightningModule) -> "ModuleOptimizer":
        other = ModuleOptimizer(self.votes)
        other._module, other._rates = module, self._rates
        other.clip = self.clip
        return other

    @override
    def round_factor(self, round_index: int) -> float:
        """Return the factor that a scheduler of epochs puts on the base rate in a round."""
        while len(self._factors) < round_index:
            self._factors.extend(self._next_factors(max(64, 2 * round_index)))
        factor = self._factors[round_index - 1]
        if not factor > 0:
            raise ValueError(
                f"the scheduler of {type(self._module).__name__} sets the learning rate of round {round_index} to "
                f"{factor * self._rates.base:g}: it must stay above 0, for example by eta_min"
            )
        return factor

    def _next_factors(self, up_to: int) -> list[float]:
        own = self._configure()
        if own.scheduler is None or own.interval != "epoch":
            return [1.0] * (up_to - len(self._factors))
        _give_scalars(own.optimizer)
        factors = []
        for index in range(1, up_to + 1):
            factors.append(_epoch_rate(own, index) / self._rates.base)
            own.optimizer.step()  # moves nothing; a scheduler warns if no step came before it
            if index % own.frequency == 0:
                own.scheduler.step()
        return factors[len(self._factors) :]

    @override
    def begin(
        self, weights: torch.Tensor, gradient: torch.Tensor, parameters: Sequence[torch.nn.Parameter], lr: float
    ) -> LocalSteps:
        return self._begin(lr)

    def _begin(self, lr: float) -> "_ModuleSteps":
        return _ModuleSteps(self._configure(), self._bound(), lr / self._rates.first)

    @override
    def accumulation(self, num_steps: IntVector, lr: float) -> Vector:
        self._bound()
        longest = int(num_steps.max(initial=1))
        if len(self._table(longest, lr)) <= longest:
            raise ValueError(
                f"the scheduler of {type(self._module).__name__} ends before {longest} local steps, the most of a "
                "client in a round: give it more steps"
            )
        return super().accumulation(num_steps, lr)

    @override
    def _probe(self, num_steps: int, lr: float, gradient: float = 1.0) -> Vector:
        return self._paths(num_steps, lr, gradient)[:, 0]

    def _paths(self, num_steps: int, lr: float, gradient: float) -> Vector:
        """Return A after 0, 1, ... steps under a constant gradient for each parameter group, (T + 1, groups)."""
        steps = self._begin(lr)
        scalars = _give_scalars(steps.optimizer)
        path = [[0.0] * len(scalars)]
        for _ in range(num_steps):
            for scalar in scalars:
                scalar.grad = torch.full_like(scalar, gradient)
            try:
                steps.step()
            except ValueError:  # a scheduler of a given length is at its end
                break
            path.append([scalar.item() for scalar in scalars])
        return -np.array(path) / lr

    def _obstacle(self) -> str | None:
        """Return why there is no accumulation, or nothing."""
        once, thrice = self._paths(8, self._rates.base, 1.0), self._paths(8, self._rates.base, -3.0)
        if not np.allclose(-3 * once, thrice, rtol=1e-9, atol=1e-12):
            return "is not linear in the gradients"
        if not np.allclose(once, once[:, :1], rtol=1e-9, atol=1e-12):
            return "steps its parameter groups differently"
        return None

    def _configure(self) -> Configured:
        return configured(self._bound())

    def _bound(self) -> LightningModule:
        if self._module is None:
            raise ValueError(
                "ModuleOptimizer takes its optimizer from a module, which only a run has: diagnose with the solver "
                "that the module's optimizer amounts to, such as SGD"
            )
        return self._module


def _give_scalars(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    """Put one number in place of the parameters of each group, without weight decay, and return them."""
    scalars = []
    for group in optimizer.param_groups:
        scalars.append(torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)))
        group["params"] = scalars[-1:]
        if "weight_decay" in group:
            group["weight_decay"] = 0.0  # belongs to the local loss, not to A
    return scalars


def _epoch_rate(own: Configured, round_index: int) -> float:
    """Return the rate of a round, given the optimizer as its scheduler of epochs left it."""
    if own.scheduler is None or own.interval != "epoch":
        return own.base_rate
    groups = own.optimizer.param_groups
    factors = [float(group["lr"]) / float(group.get("initial_lr", group["lr"])) for group in groups]
    if not np.allclose(factors, factors[0], rtol=1e-9):
        raise ValueError(f"the scheduler changes the parameter groups differently in round {round_index}: {factors}")
    if round_index == 1 and not factors[0] > 0:
        raise ValueError(
            f"the scheduler begins with a learning rate of {factors[0] * own.base_rate:g}, which must be > 0"
        )
    return factors[0] * own.base_rate


class _ModuleSteps:
    """Steps the module's optimizer, with its rates multiplied by a factor, and then its scheduler."""

    def __init__(self, own: Configured, module: LightningModule, factor: float) -> None:
        self.optimizer, self.module = own.optimizer, module
        self.factor = factor
        self.scheduler = own.scheduler if own.interval == "step" else None
        self.frequency, self.step_index = own.frequency, 0

    def step(self) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        # The scheduler knows nothing of the factor, whatever way it computes the next rate from the last.
        for group in groups:
            group["lr"] = group["lr"] * self.factor
        self.optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self.step_index += 1
        if self.scheduler is not None and self.step_index % self.frequency == 0:
            self.module.lr_scheduler_step(self.scheduler, None)

    def narrow(self, num_rows: int) -> None:
        raise NotImplementedError("a module's optimizer steps one client at a time")
