"""Step-length calibration: one division instead of a table of algorithms."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, Protocol, get_args

from fl_lightning.types import RoundPlan

Scope = Literal["round", "average", "none"]
Place = Literal["local", "server"]
_MAX_ITERATIONS = 50


class Replanner(Protocol):
    """What calibration asks of the planner."""

    def at_rate(self, plan: RoundPlan, learning_rate: float) -> RoundPlan:
        """Return an undrawn plan at another learning rate."""

    def typical_plans(self, learning_rate: float) -> Iterator[RoundPlan]:
        """Yield undrawn plans of typical rounds at a learning rate."""


class Calibration:
    r"""Gives every algorithm the expected step length that FedAvg has at the base learning rate.

    .. math:: \eta = \eta_1 \frac{\sum_m w_m (1-q_m) A_m}{\sum_m p_m (1-q_m) c_m A_m}

    Args:
        scope: ``round``: equal in each round. ``average``: one factor from the expectation over typical rounds.
            ``none``: the base rate is used as it is.
        apply: ``local``: changes the local learning rate, as in the paper. ``server``: multiplies the aggregate and
            leaves the local rate, and with it the local drift, equal for all algorithms.
        max_learning_rate: Never exceed this local learning rate.
    """

    def __init__(self, scope: Scope = "round", apply: Place = "local", max_learning_rate: float | None = None) -> None:
        if scope not in get_args(Scope):
            raise ValueError(f"scope={scope!r} is unknown: use one of {', '.join(get_args(Scope))}")
        if apply not in get_args(Place):
            raise ValueError(f"apply={apply!r} is unknown: use one of {', '.join(get_args(Place))}")
        if max_learning_rate is not None and not max_learning_rate > 0:
            raise ValueError(f"max_learning_rate={max_learning_rate} must be positive")
        self.scope, self.apply, self.max_learning_rate = scope, apply, max_learning_rate
        self._average_factor: float | None = None

    def __call__(self, plan: RoundPlan, planner: Replanner) -> RoundPlan:
        """Return an undrawn plan, made at the base learning rate, at its calibrated one.

        Where p and A depend on the rate (proximal solvers), the rate is a fixed point.
        """
        if self.scope == "none":
            return plan
        if self.apply == "server":
            return replace(plan, server_scale=self._factor(plan, plan, planner))
        base, current = plan, plan
        for _ in range(_MAX_ITERATIONS):
            rate = self._capped(base.learning_rate * self._factor(base, current, planner))
            if abs(rate - current.learning_rate) <= 1e-12 * rate:
                break
            current = planner.at_rate(current, rate)
            if current.expected is base.expected:  # nothing depends on the rate
                break
        return current

    def state_dict(self) -> dict[str, float | None]:
        """Return the factor of ``average``, which was worked out in the first round."""
        return {"average_factor": self._average_factor}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Take the factor back."""
        self._average_factor = state["average_factor"]

    def _capped(self, rate: float) -> float:
        return rate if self.max_learning_rate is None else min(rate, self.max_learning_rate)

    def _factor(self, base: RoundPlan, current: RoundPlan, planner: Replanner) -> float:
        if self.scope == "round":
            return _fedavg_length(base) / current.expected.step_length
        if self._average_factor is None or current is not base:
            wanted = sum(_fedavg_length(each) for each in planner.typical_plans(base.learning_rate))
            reached = sum(each.expected.step_length for each in planner.typical_plans(current.learning_rate))
            self._average_factor = wanted / reached
        return self._average_factor


def _fedavg_length(plan: RoundPlan) -> float:
    """Return sum_m w (1-q) A: FedAvg's step length under the conditions of a plan."""
    profiles = plan.profiles
    return float((profiles.weights * (1 - profiles.failure_rates) * profiles.accumulation).sum())
