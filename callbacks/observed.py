"""ObservedConditions: T and q as they are seen, where nobody knows them."""

from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.parts.bases import Schedule
from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.traits import ScheduleTraits
from fl_lightning.types import BoolVector, Conditions, IntVector, RoundResult, Vector

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


class ObservedConditions(Remembers, Callback, Schedule):
    r"""Estimates how often each client's upload fails, and how many local steps it takes, from earlier rounds.

    With a Beta prior of mean :math:`q_0` that counts as much as :math:`s` draws, after :math:`n_m` rounds in which the
    client was asked and :math:`l_m` in which nothing arrived,

    .. math:: \hat q_m = \frac{s q_0 + l_m}{s + n_m}, \qquad \hat T_m = \text{mean of the reported } T

    The estimate of T is rounded to a whole number of steps; clients that decide about T themselves are asked for it and
    do what they can. FedACS, c-a-FedAvg, c-a-FedNova and FedStale use these numbers in place of known ones.

    Args:
        num_steps: T of a client before it has reported any.
        failure_rate: q_0, before anything was seen.
        prior_draws: s, how many draws the prior counts for.
        decay: Factor on what was seen of a client each time it is asked again; below 1 where conditions change.
    """

    traits = ScheduleTraits(period=1, learns=True)  # as far as is known, every round is like the next
    memory = ("_asked", "_lost", "_steps", "_reports")

    def __init__(
        self, num_steps: int = 10, failure_rate: float = 0.1, prior_draws: float = 2.0, decay: float = 1.0
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        if not 0 <= failure_rate < 1:
            raise ValueError(f"failure_rate={failure_rate} must be in [0, 1)")
        if not 0 < prior_draws < float("inf"):
            raise ValueError(f"prior_draws={prior_draws} must be a positive number: without a prior q could be 1")
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay} must be in (0, 1]: 1 forgets nothing")
        self.num_steps, self.failure_rate, self.prior_draws, self.decay = num_steps, failure_rate, prior_draws, decay
        # Sums over the rounds so far, each (M,).
        self._asked: Vector = np.empty(0)
        self._lost: Vector = np.empty(0)
        self._steps: Vector = np.empty(0)
        self._reports: Vector = np.empty(0)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it learns from the uploads of other machines", "HeterogeneitySchedule")

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return what is known of T and q of all clients."""
        self._make_room(len(steps_per_epoch))
        rates = (self.prior_draws * self.failure_rate + self._lost) / (self.prior_draws + self._asked)
        mean = np.divide(self._steps, self._reports, out=np.full(len(rates), float(self.num_steps)), where=self._known)
        return Conditions(np.maximum(1, np.rint(mean)).astype(np.int64), rates)

    @property
    def _known(self) -> BoolVector:
        return self._reports > 0

    def _make_room(self, num_clients: int) -> None:
        if not len(self._asked):
            self._asked, self._lost, self._steps, self._reports = (np.zeros(num_clients) for _ in range(4))

    def on_round_end(self, loop: "FederatedLoop", result: RoundResult) -> None:
        """Learn from a round."""
        self.observe(result)

    def observe(self, result: RoundResult) -> None:
        """Take in who was asked, who was heard, and the steps that were reported."""
        self._make_room(result.plan.profiles.num_clients)
        drawn = result.plan.cohort.clients
        heard = drawn[result.delivered[drawn] > 0]
        lost = np.setdiff1d(drawn, heard)
        rows = np.isin(result.updates.clients, heard)
        self._asked = _added(self._asked, drawn, 1.0, drawn, self.decay)
        self._lost = _added(self._lost, lost, 1.0, drawn, self.decay)
        reporters = result.updates.clients[rows]
        self._steps = _added(self._steps, reporters, result.updates.num_steps[rows], reporters, self.decay)
        self._reports = _added(self._reports, reporters, 1.0, reporters, self.decay)


def _added(sums: Vector, clients: IntVector, amounts: Any, fading: IntVector, decay: float) -> Vector:
    """Return sums with the amounts of some clients added, after those of others have faded."""
    total = sums.copy()
    total[fading] *= decay
    total[clients] += amounts
    return total
