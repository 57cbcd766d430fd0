"""FedAvgM, FedAdam, FedYogi, FedExP, amplified FedAvg: an optimizer on the server, on top of any aggregator."""

from dataclasses import replace

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, delivered_shares
from fl_lightning.parts.traits import AggregatorTraits, forwards
from fl_lightning.types import IntVector, RoundPlan, Updates, widened


@forwards(Aggregator, "aggregator")
class ServerOptimizer(Aggregator):
    """Takes the step of another aggregator for a gradient and makes a step of its own from it (Reddi et al. 2021).

    Override :meth:`initial_moments` and :meth:`transform`. Everything else is left to the other aggregator; so the
    reported coefficients, and with them the calibration, are about the gradient and not about what is made of it. A
    round in which nothing arrives is one with a zero gradient: momentum moves the model on.

    Args:
        aggregator: Makes the gradient.
        lr: Factor on the step.
    """

    memory = ("moments", "aggregator")
    linear = True  # whether the step is linear in the gradients

    def __init__(self, aggregator: Aggregator, lr: float) -> None:
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be a positive number")
        self.aggregator = self.wrapped = aggregator
        self.lr = lr

    @property
    @override
    def traits(self) -> AggregatorTraits:
        inner = self.aggregator.traits
        return replace(inner, moments=True, linear=inner.linear and self.linear)

    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the optimizer remembers before the first round, by name."""
        raise NotImplementedError

    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the step, before the factor ``lr``, and replace the moments."""
        raise NotImplementedError

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.aggregator.setup(num_clients, weights)
        self.moments = self.initial_moments(weights)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        return self.lr * self.transform(self.aggregator.step(weights, updates, delivered, plan), self.moments)


class ServerMomentum(ServerOptimizer):
    r"""Adds up the steps of the rounds with decay (FedAvgM on top of the anonymous mean, Hsu et al. 2019).

    .. math:: v \leftarrow \beta v + g, \qquad X \leftarrow X - \eta_s v

    In the long run the step is :math:`\eta_s / (1-\beta)` times as long as without; ``lr = 1 - momentum`` keeps its
    length. Omega stays what it is.

    Args:
        aggregator: Makes the gradient.
        momentum: beta, in [0, 1).
        lr: eta_s, factor on the step.
    """

    def __init__(self, aggregator: Aggregator, momentum: float = 0.9, lr: float = 1.0) -> None:
        super().__init__(aggregator, lr)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be in [0, 1)")
        self.momentum = momentum

    @override
    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"velocity": torch.zeros_like(weights)}

    @override
    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        moments["velocity"] = self.momentum * moments["velocity"] + gradient
        return moments["velocity"]


class Amplified(ServerOptimizer):
    r"""Makes what P rounds did larger, once they are over (amplified FedAvg, Wang & Ji 2022).

    .. math:: X_{t} \leftarrow X_{t-P} + \gamma (X_t - X_{t-P}) \qquad \mathrm{after\ every\ P\ rounds}

    While clients come in turns, the local rate can be small, so that those who come last do not undo what the first
    did, and the amplified step covers the distance. In the long run the step is gamma times as long; Omega stays.

    Args:
        aggregator: Makes the steps.
        period: P, in rounds.
        amplification: gamma.
    """

    def __init__(self, aggregator: Aggregator, period: int = 10, amplification: float = 2.0) -> None:
        super().__init__(aggregator, 1.0)
        if period < 1:
            raise ValueError(f"period={period} must be at least 1 round")
        if not 0 < amplification < float("inf"):
            raise ValueError(f"amplification={amplification} must be a positive number")
        self.period = period
        self.amplification = amplification

    @override
    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"total": torch.zeros_like(weights), "rounds": torch.zeros((), dtype=torch.int64)}

    @override
    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        moments["total"] = moments["total"] + gradient
        moments["rounds"] = moments["rounds"] + 1
        if moments["rounds"] % self.period:
            return gradient
        total, moments["total"] = moments["total"], torch.zeros_like(gradient)
        return gradient + (self.amplification - 1) * total


class Extrapolated(ServerOptimizer):
    r"""Makes the step longer where the updates disagree (FedExP, Jhunjhunwala et al. 2023).

    .. math:: X \leftarrow X - \max\Bigl(1, \frac{\sum_m s_m \|u_m\|^2}{2 (\|g\|^2 + \epsilon)}\Bigr) g, \qquad
        g = \sum_m s_m u_m

    with :math:`u_m = \eta \Delta_m` what a client moved and :math:`s_m = n_m c_m / K`. All clients get one factor, but
    it depends on who is there: Omega is the objective of g, and what is optimised depends on the data. The original
    takes the mean of the last two models for its result; the averaged model is here for that.

    Args:
        aggregator: Makes g.
        epsilon: Limits the factor where the updates cancel out.
    """

    linear = False

    def __init__(self, aggregator: Aggregator, epsilon: float = 1e-3) -> None:
        super().__init__(aggregator, 1.0)
        if not 0 <= epsilon < float("inf"):
            raise ValueError(f"epsilon={epsilon} must be a number from 0 up")
        self.epsilon = epsilon

    @property
    @override
    def traits(self) -> AggregatorTraits:
        return replace(super().traits, only_sums=False, moments=False)

    @override
    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        step = self.aggregator.step(weights, updates, delivered, plan)
        shares = torch.from_numpy(delivered_shares(plan.coefficients, updates, delivered, plan))
        lengths = widened(updates.deltas).square().sum(dim=1).cpu()
        moved = (plan.learning_rate * plan.server_scale) ** 2 * float(shares @ lengths)
        below = 2 * (float(widened(step).square().sum()) + self.epsilon)
        return max(1.0, moved / below) * step if below > 0 else step


class ServerAdam(ServerOptimizer):
    r"""Divides the mean step by its root mean square (on top of the anonymous mean: FedAdam, Reddi et al. 2021).

    .. math::
        m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
        v \leftarrow \beta_2 v + (1-\beta_2) g^2, \qquad
        X \leftarrow X - \eta_s \frac{m}{\sqrt v + \epsilon}

    As in the original, the moments are not corrected for their start, which is 0 and :math:`\epsilon^2`. The division
    is not linear: Omega is the objective of the gradient, and no step length is defined.

    Args:
        aggregator: Makes the gradient.
        lr: eta_s, the step of each weight where the gradient is steady.
        beta1: Memory of the mean, in [0, 1).
        beta2: Memory of the mean square, in [0, 1).
        epsilon: Gradients well below this are not amplified further.
    """

    linear = False

    def __init__(
        self, aggregator: Aggregator, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-3
    ) -> None:
        super().__init__(aggregator, lr)
        for name, share in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= share < 1:
                raise ValueError(f"{name}={share} must be in [0, 1)")
        if not 0 < epsilon < float("inf"):
            raise ValueError(f"epsilon={epsilon} must be a positive number")
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    @override
    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mean": torch.zeros_like(weights), "square": torch.full_like(weights, self.epsilon**2)}

    @override
    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        moments["mean"] = torch.lerp(gradient, moments["mean"], self.beta1)
        moments["square"] = self.next_square(moments["square"], gradient**2)
        return moments["mean"] / (moments["square"].sqrt() + self.epsilon)

    def next_square(self, square: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
        """Return the second moment after a round, given the square of its gradient."""
        return torch.lerp(fresh, square, self.beta2)


class ServerYogi(ServerAdam):
    r"""Is Adam whose denominator changes by a bounded amount (FedYogi on top of the anonymous mean, Reddi et al. 2021).

    .. math::
        m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
        v \leftarrow v - (1-\beta_2) g^2 \operatorname{sign}(v - g^2), \qquad
        X \leftarrow X - \eta_s \frac{m}{\sqrt v + \epsilon}

    After large gradients the denominator shrinks slowly, so steps do not jump when gradients become rare. What
    :class:`ServerAdam` says about start and Omega holds here too.

    Args:
        aggregator: Makes the gradient.
        lr: eta_s, the step of each weight where the gradient is steady.
        beta1: Memory of the mean, in [0, 1).
        beta2: 1 minus the pace of the denominator, in [0, 1).
        epsilon: Gradients well below this are not amplified further.
    """

    @override
    def next_square(self, square: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
        return square - (1 - self.beta2) * fresh * torch.sign(square - fresh)
