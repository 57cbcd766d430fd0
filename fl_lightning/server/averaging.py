r"""What is averaged over rounds: the global model, which costs nothing but a copy and needs nobody's name.

A consistent algorithm wanders around the right point, a biased one around the wrong point. Averaging takes the
wandering away, so it brings out what an algorithm converges to, right or wrong.
"""

import torch
from typing_extensions import override

from fl_lightning import theory
from fl_lightning.parts.memory import Remembers
from fl_lightning.types import ModelState


class Averaging(Remembers):
    r"""Keeps a running average of the global weights and float buffers.

    .. math:: Z_r = Z_{r-1} + \gamma_r (X_r - Z_{r-1})

    Override :meth:`rate` for another :math:`\gamma`.
    """

    memory = ("_weights", "_buffers")

    def __init__(self) -> None:
        self._weights: torch.Tensor | None = None
        self._buffers: torch.Tensor | None = None

    def rate(self, round_index: int) -> float:
        r"""Return :math:`\gamma_r`, the share of the newest model; rounds are counted from 1."""
        raise NotImplementedError

    def update(self, state: ModelState, round_index: int) -> None:
        """Take in the model of a round."""
        rate = self.rate(round_index)
        if self._weights is None or self._buffers is None:
            self._weights = state.weights.clone()
            self._buffers = state.buffers.clone()
        else:
            # A checkpoint leaves them in main memory.
            self._weights = torch.lerp(self._weights.to(state.weights), state.weights, rate)
            self._buffers = torch.lerp(self._buffers.to(state.buffers), state.buffers, rate)

    def variance_factor(self, num_rounds: int, contraction: float) -> float:
        """Return the variance of the average after some rounds relative to that of the model, on a quadratic loss."""
        return theory.average_factor(map(self.rate, range(1, num_rounds + 1)), contraction)

    @property
    def state(self) -> ModelState | None:
        """The averaged model; None before the first round, and where nothing is averaged."""
        if self._weights is None or self._buffers is None:
            return None
        return ModelState(self._weights, self._buffers)


class NoAverage(Averaging):
    """Averages nothing."""

    @override
    def rate(self, round_index: int) -> float:
        return 1.0

    @override
    def update(self, state: ModelState, round_index: int) -> None:
        pass


class ExponentialAverage(Averaging):
    r"""Forgets old models at a constant rate, after a warm-up in which all rounds so far count.

    .. math:: \gamma_r = 1 - \min\bigl(\beta, \tfrac{r}{r + s}\bigr)

    Args:
        decay: beta; the average reaches back about 1 / (1 - beta) rounds.
        warm_up: s; the larger, the more the first rounds' models are forgotten.

    >>> [round(ExponentialAverage(0.95).rate(number), 3) for number in (1, 9, 1000)]
    [0.9, 0.5, 0.05]
    """

    def __init__(self, decay: float = 0.95, warm_up: float = 9.0) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must be in [0, 1): 0 averages nothing, 0.95 about 20 rounds")
        if not 0 <= warm_up < float("inf"):
            raise ValueError(f"warm_up={warm_up} must be a number of rounds, 0 or more")
        self.decay, self.warm_up = decay, warm_up

    @override
    def rate(self, round_index: int) -> float:
        return 1 - min(self.decay, round_index / (round_index + self.warm_up))


class TailAverage(Averaging):
    r"""Averages all rounds, the later ones more: weights grow as :math:`r^k`, whatever the number of rounds will be.

    .. math:: \gamma_r = \frac{k + 1}{k + r}

    Args:
        power: k. 0 is Polyak's mean of all rounds; k > 0 has most of its weight on the last 1 / (k + 1) of them.

    >>> [round(TailAverage(power=0).rate(number), 3) for number in (1, 2, 4)]
    [1.0, 0.5, 0.25]
    """

    def __init__(self, power: float = 3.0) -> None:
        super().__init__()
        if not 0 <= power < float("inf"):
            raise ValueError(f"power={power} must be a number, 0 or more")
        self.power = power

    @override
    def rate(self, round_index: int) -> float:
        return (self.power + 1) / (self.power + round_index)
