"""An optimizer on the server, on top of any aggregator."""

from typing import Any

import torch

from fl_lightning.aggregators.base import Aggregator
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class ServerOptimizer(Aggregator):
    """Takes the step of another aggregator for a gradient and makes a step of its own from it (Reddi et al. 2021).

    Override :meth:`initial_moments` and :meth:`transform`. Everything else is left to the other aggregator; so the
    reported coefficients, and with them the calibration, are about the gradient and not about what is made of it. A
    round in which nothing arrives is one with a zero gradient: momentum moves the model on.

    Args:
        aggregator: Makes the gradient.
        lr: Factor on the step.
    """

    def __init__(self, aggregator: Aggregator, lr: float) -> None:
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be a positive number")
        self.aggregator, self.lr = aggregator, lr

    def initial_moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the optimizer remembers before the first round, by name."""
        raise NotImplementedError

    def transform(self, gradient: torch.Tensor, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the step, before the factor ``lr``, and replace the moments."""
        raise NotImplementedError

    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for the moments and for the other aggregator's memory."""
        self.aggregator.setup(num_clients, weights)
        self.moments = self.initial_moments(weights)

    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return those of the other aggregator."""
        return self.aggregator.coefficients(profiles, cohort)

    def start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        """Return what the other aggregator returns."""
        return self.aggregator.start(client, weights)

    def gradient_shift(self, client: int) -> torch.Tensor | None:
        """Return what the other aggregator returns."""
        return self.aggregator.gradient_shift(client)

    def trains(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return what the other aggregator returns."""
        return self.aggregator.trains(plan, delivered)

    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return what the other aggregator returns."""
        return self.aggregator.direction(updates, delivered, plan)

    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the step that the optimizer makes of the other aggregator's."""
        return self.lr * self.transform(self.aggregator.step(weights, updates, delivered, plan), self.moments)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and the other aggregator's memory."""
        return {"moments": dict(self.moments), "aggregator": self.aggregator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.moments = {name: value.to(self.moments[name]) for name, value in state["moments"].items()}
        self.aggregator.load_state_dict(state["aggregator"])


def checked_share(name: str, value: float) -> float:
    """Return a factor of a running mean, which must lie in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} must be in [0, 1)")
    return value


def checked_epsilon(epsilon: float) -> float:
    """Return the constant that keeps a denominator from zero."""
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"epsilon={epsilon} must be a positive number")
    return epsilon
