"""The learning rate of a round: a schedule over the rounds, and the calibration of step lengths by one division."""

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from typing_extensions import override

from fl_lightning.parts.memory import Remembers
from fl_lightning.theory.checks import one_of
from fl_lightning.types import RoundPlan, Scope

Place = Literal["local", "server", "split"]
Shares = Literal["drawn", "nominal"]
TypicalPlans = Callable[[float], Iterator[RoundPlan]]  # undrawn, at a learning rate
_LOG = logging.getLogger("fl_lightning")
_LARGE = 2.0  # of learning rate x A: on a loss of curvature 1 a client then ends further from its optimum than it was
_LOCAL_SHARE = {"local": 1.0, "split": 0.5, "server": 0.0}  # exponent of the factor that goes to the local rate


class Calibration(Remembers):
    r"""Gives every algorithm the expected step length that FedAvg has at the base learning rate.

    .. math:: f = \frac{\sum_m w_m (1-q_m) A_m}{\sum_m p_m (1-q_m) c_m A_m}, \qquad \eta = \eta_1 f^a, \quad s = f^{1-a}

    with :math:`\eta` the local learning rate and s the factor on the aggregate.

    Args:
        scope: ``round``: equal in each round. ``average``: one factor from the expectation over typical rounds.
            ``none``: the base rate is used as it is. Samplers whose probabilities do not follow each round's conditions
            are calibrated over typical rounds at most, and those that select by a rule not at all.
        apply: Where the factor goes. ``local`` (a = 1): to the local learning rate, as in the paper; long local work
            then saturates where :math:`\eta A` is large. ``server`` (a = 0): to the aggregate, which leaves the local
            drift equal for all algorithms and amplifies the noise of small batches. ``split`` (a = 1/2): half of it, in
            logarithms, to each.
        max_learning_rate: Never exceed this local learning rate.
        shares: ``drawn``: p in the formula is how often clients are really drawn. ``nominal``: it is the sampler's p,
            as in the paper, also where E[n] is not K p (``Successive``): FedACS's steps are then longer than FedAvg's.
    """

    memory = ("_average_factor",)

    def __init__(
        self,
        scope: Scope = "round",
        apply: Place = "server",
        max_learning_rate: float | None = None,
        shares: Shares = "drawn",
    ) -> None:
        one_of("scope", scope, Scope)
        one_of("apply", apply, Place)
        one_of("shares", shares, Shares)
        if max_learning_rate is not None and not max_learning_rate > 0:
            raise ValueError(f"max_learning_rate={max_learning_rate} must be positive")
        self.scope = scope
        self.apply = apply
        self.shares = shares
        self.max_learning_rate = max_learning_rate
        self._average_factor: float | None = None
        self._warned: set[str] = set()

    def __call__(self, base: RoundPlan, current: RoundPlan, typical: TypicalPlans) -> tuple[float, float]:
        """Return the learning rate of the local steps and the factor on the aggregate.

        Args:
            base: An undrawn plan at the base learning rate.
            current: The same at the rate that was found so far, where p and A depend on it (proximal solvers).
            typical: Yields undrawn plans of typical rounds at a learning rate.
        """
        scope = max(self.scope, base.cohort.scope, key=get_args(Scope).index)
        if scope == "none":
            return base.learning_rate, 1.0
        factor = self._factor(scope, base, current, typical)
        share = _LOCAL_SHARE[self.apply]
        rate = base.learning_rate * factor**share
        rate = rate if self.max_learning_rate is None else min(rate, self.max_learning_rate)
        largest = rate * float(base.profiles.accumulation.max())
        if largest > _LARGE:
            self._warn(
                "saturation",
                f"round {base.index}: local learning rate x local work is {largest:.1f} for the busiest client: its "
                "steps may saturate or overshoot, which no calibration sees; lower loop.lr, ask for less work "
                "(loop.max_local_steps=auto), or calibrate by loop.calibration.apply=split",
            )
        return rate, factor ** (1 - share)

    def factor(self, plan: RoundPlan) -> float:
        """Return the factor of an undrawn round by itself; 1 where nothing is calibrated."""
        scope = max(self.scope, plan.cohort.scope, key=get_args(Scope).index)
        return 1.0 if scope == "none" else _fedavg_length(plan) / self._length(plan)

    def _factor(self, scope: Scope, base: RoundPlan, current: RoundPlan, typical: TypicalPlans) -> float:
        if scope == "round":
            return _fedavg_length(base) / self._length(current)
        if self._average_factor is None or current is not base:
            wanted = sum(_fedavg_length(each) for each in typical(base.learning_rate))
            reached = sum(self._length(each) for each in typical(current.learning_rate))
            self._average_factor = wanted / reached
        return self._average_factor

    def _length(self, plan: RoundPlan) -> float:
        """Return the step length that the factor divides by."""
        nominal = plan.expected.nominal if self.shares == "nominal" else None
        return (nominal or plan.expected.lasting).step_length

    def warn_unsettled(self, rate: float, num_iterations: int) -> None:
        """Warn once where the rate is no fixed point."""
        self._warn(
            "settling",
            f"the calibrated learning rate does not settle in {num_iterations} steps (now {rate:g}): lower loop.lr or "
            "the proximal term, or calibrate on the server (loop.calibration.apply=server)",
        )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning(text)


def _fedavg_length(plan: RoundPlan) -> float:
    """Return sum_m w (1-q) A of every step that clients offer: FedAvg's step length, among those who can be drawn.

    Where absence shortens the step, it must not lengthen the rate in the same round: all clients count.
    """
    profiles = plan.profiles
    work = profiles.accumulation if profiles.offered_accumulation is None else profiles.offered_accumulation
    weights = profiles.reachable_weights if plan.expected.average is None else profiles.weights
    return float((weights * (1 - profiles.failure_rates) * work).sum())


class RateSchedule:
    """Multiplies the base learning rate in each round, before calibration. This one leaves it as it is."""

    def factor(self, round_index: int, rounds: int) -> float:
        """Return the factor of a round, counted from 1, in a run of so many rounds."""
        return 1.0


class CosineRate(RateSchedule):
    r"""Falls along half a cosine, after a linear rise.

    .. math:: f_r = f_R + (1 - f_R) \tfrac12 \bigl(1 + \cos(\pi \tfrac{r - 1 - s}{R - s})\bigr)

    Args:
        final: f_R, the factor towards which it falls.
        warm_up: s, rounds in which the factor rises evenly to 1.

    >>> [round(CosineRate().factor(number, 4), 3) for number in (1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    def __init__(self, final: float = 0.0, warm_up: int = 0) -> None:
        if not 0 <= final < float("inf"):
            raise ValueError(f"final={final} must be a number, 0 or more")
        if warm_up < 0:
            raise ValueError(f"warm_up={warm_up} must be a number of rounds, 0 or more")
        self.final, self.warm_up = final, warm_up

    @override
    def factor(self, round_index: int, rounds: int) -> float:
        if round_index <= self.warm_up:
            return round_index / (self.warm_up + 1)
        done = (round_index - 1 - self.warm_up) / max(1, rounds - self.warm_up)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2


class StepRate(RateSchedule):
    """Falls by a factor every few rounds.

    Args:
        every: Rounds between two falls.
        gamma: The factor of each.

    >>> [StepRate(every=2, gamma=0.5).factor(number, 5) for number in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    def __init__(self, every: int, gamma: float = 0.1) -> None:
        if every < 1:
            raise ValueError(f"every={every} must be a number of rounds, at least 1")
        if not 0 < gamma < float("inf"):
            raise ValueError(f"gamma={gamma} must be a positive number")
        self.every, self.gamma = every, gamma

    @override
    def factor(self, round_index: int, rounds: int) -> float:
        return float(self.gamma ** ((round_index - 1) // self.every))


class TorchRate(RateSchedule):
    """Follows a scheduler of ``torch.optim.lr_scheduler``, stepped once per round from a rate of 1.

    Args:
        scheduler: Its name there.
        options: Its arguments; rates among them are factors on the base rate.

    >>> [round(TorchRate("ExponentialLR", {"gamma": 0.5}).factor(number, 3), 3) for number in (1, 2, 3)]
    [1.0, 0.5, 0.25]
    """

    def __init__(self, scheduler: str, options: dict[str, Any] | None = None) -> None:
        module = torch.optim.lr_scheduler
        kind = getattr(module, scheduler, None)
        base = module.LRScheduler
        if not (isinstance(kind, type) and issubclass(kind, base)) or issubclass(kind, module.ReduceLROnPlateau):
            known = [name for name in module.__all__ if issubclass(getattr(module, name), base)]
            listed = ", ".join(name for name in known if name not in ("LRScheduler", "ReduceLROnPlateau"))
            raise ValueError(
                f"scheduler={scheduler!r} is no scheduler of torch that depends on the round alone: use {listed}"
            )
        self.scheduler, self.options = scheduler, options or {}
        self._factors: list[float] = []
        self._extend(1)

    @override
    def factor(self, round_index: int, rounds: int) -> float:
        if round_index > len(self._factors):
            self._extend(max(rounds, round_index))
        return self._factors[round_index - 1]

    def _extend(self, num_rounds: int) -> None:
        """Play the scheduler from the start: what it gives depends on the number of its steps, and on nothing else."""
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        try:
            scheduler = getattr(torch.optim.lr_scheduler, self.scheduler)(optimizer, **self.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.scheduler} does not take options={self.options}: {error}") from None
        self._factors = []
        for _ in range(num_rounds):
            self._factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
