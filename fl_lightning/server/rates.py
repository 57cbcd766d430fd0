"""Learning rates over the rounds: each is a factor on the base rate, and a function of the round alone."""

import math
from typing import Any

import torch
from typing_extensions import override


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
