"""Budget: what a run may cost, at most."""

from dataclasses import dataclass, fields
from functools import cached_property

from fl_lightning.parts.memory import Remembers
from fl_lightning.types import RoundCosts


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Ends a run after the round in which the first of these is used up; the number of rounds is a limit as well.

    Args:
        local_steps: Of all clients together.
        computation_time: Seconds on all devices together.
        synchronous_time: Seconds on the clock.
        uplink_bytes: Sent by all clients together.
        downlink_bytes: Sent to all clients together.
    """

    local_steps: int | None = None
    computation_time: float | None = None
    synchronous_time: float | None = None
    uplink_bytes: float | None = None
    downlink_bytes: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.limits.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"budget: {name}={value} must be a positive number: leave it out for no limit")

    @cached_property
    def limits(self) -> dict[str, float]:
        """What is limited."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


class Spent(Remembers):
    """Adds up what the rounds cost, so that budgets and columns agree."""

    memory = ("local_steps", "computation_time", "synchronous_time", "uplink_bytes", "downlink_bytes")

    def __init__(self) -> None:
        self.local_steps = 0
        self.computation_time = self.synchronous_time = self.uplink_bytes = self.downlink_bytes = 0.0

    def add(self, costs: RoundCosts) -> None:
        """Take in a round."""
        self.local_steps += costs.local_steps
        self.computation_time += costs.computation_time
        self.synchronous_time += costs.round_time
        self.uplink_bytes += costs.uplink_bytes
        self.downlink_bytes += costs.downlink_bytes

    def exceeds(self, budget: Budget) -> bool:
        """Whether any of a budget is used up.

        >>> spent = Spent()
        >>> spent.add(RoundCosts(local_steps=5, computation_time=5, round_time=2, uplink_bytes=0, downlink_bytes=0))
        >>> spent.exceeds(Budget(local_steps=5)), spent.exceeds(Budget(synchronous_time=3))
        (True, False)
        """
        return any(getattr(self, name) >= limit for name, limit in budget.limits.items())
