"""Step-length calibration: one division instead of a table of algorithms."""

from collections.abc import Callable, Iterator

from fl_lightning import theory
from fl_lightning.types import RoundPlan

_SCOPES, _PLACES = ("round", "average", "none"), ("local", "server")
_MAX_ITERATIONS = 50


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

    def __init__(self, scope: str = "round", apply: str = "local", max_learning_rate: float | None = None) -> None:
        if scope not in _SCOPES:
            raise ValueError(f"scope={scope!r} is unknown: use one of {', '.join(_SCOPES)}")
        if apply not in _PLACES:
            raise ValueError(f"apply={apply!r} is unknown: use one of {', '.join(_PLACES)}")
        if max_learning_rate is not None and not max_learning_rate > 0:
            raise ValueError(f"max_learning_rate={max_learning_rate} must be positive")
        self.scope, self.apply, self.max_learning_rate = scope, apply, max_learning_rate
        self._average_factor: float | None = None

    def __call__(
        self,
        base: float,
        plan_at: Callable[[float], RoundPlan],
        forecast_at: Callable[[float], Iterator[RoundPlan]],
        accumulation_depends_on_rate: bool,
    ) -> RoundPlan:
        """Return the round's plan with its calibrated learning rate.

        Args:
            base: eta_1.
            plan_at: Plans this round at a learning rate.
            forecast_at: Plans typical rounds at a learning rate, without drawing.
            accumulation_depends_on_rate: Whether p and A must be worked out again at the new rate (proximal solvers);
                the rate is then the fixed point.
        """
        plan = plan_at(base)
        if self.scope == "none":
            return plan
        if self.apply == "server":
            return plan.at(server_scale=self._factor(base, base, plan, plan, forecast_at))
        first, rate = plan, base
        for _ in range(_MAX_ITERATIONS if accumulation_depends_on_rate else 1):
            previous, rate = rate, self._capped(base * self._factor(base, rate, first, plan, forecast_at))
            if abs(rate - previous) <= 1e-12 * rate:
                break
            plan = plan_at(rate) if accumulation_depends_on_rate else plan.at(learning_rate=rate)
        return plan

    def state_dict(self) -> dict[str, float | None]:
        """Return the factor of ``average``, which was worked out in the first round."""
        return {"average_factor": self._average_factor}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Take the factor back."""
        self._average_factor = state["average_factor"]

    def _capped(self, rate: float) -> float:
        return rate if self.max_learning_rate is None else min(rate, self.max_learning_rate)

    def _factor(
        self,
        base: float,
        rate: float,
        first: RoundPlan,
        plan: RoundPlan,
        forecast_at: Callable[[float], Iterator[RoundPlan]],
    ) -> float:
        if self.scope == "round":
            return _fedavg_length(first) / theory.step_length(plan.contribution)
        if self._average_factor is None or rate != base:
            wanted = sum(_fedavg_length(each) for each in forecast_at(base))
            self._average_factor = wanted / sum(theory.step_length(each.contribution) for each in forecast_at(rate))
        return self._average_factor


def _fedavg_length(plan: RoundPlan) -> float:
    """Return sum_m w (1-q) A: FedAvg's step length under the conditions of a plan."""
    profiles = plan.profiles
    return float((profiles.weights * (1 - profiles.failure_rates) * profiles.accumulation).sum())
