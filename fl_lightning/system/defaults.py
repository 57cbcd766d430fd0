"""What clients meet where nothing else is said: equal work, and links that fail as the schedule says."""

import numpy as np

from fl_lightning.parts.traits import ScheduleTraits
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import Conditions, IntVector, RoundPlan


class EqualWork:
    """Gives all clients the same number of local steps and links that never fail.

    Args:
        num_steps: T; by default one pass over the data of an average client.

    >>> EqualWork().configure_conditions(1, np.array([2, 4, 9]), seed=0).num_steps.tolist()
    [5, 5, 5]
    """

    traits = ScheduleTraits(period=1)

    def __init__(self, num_steps: int | None = None) -> None:
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        self.num_steps = num_steps

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return T and q of all clients, the same in each round."""
        steps = self.num_steps or max(1, round(float(steps_per_epoch.mean())))
        num_clients = len(steps_per_epoch)
        return Conditions(np.full(num_clients, steps, dtype=np.int64), np.zeros(num_clients))


class ScheduledLinks:
    """Loses each upload with the failure rate that the schedule gives, which is 0 where it is not set."""

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive: all or none, (M,)."""
        rates = plan.profiles.failure_rates
        return plan.cohort.counts * (generator(seed, Purpose.LINK, plan.index).random(len(rates)) >= rates)
