"""What is seen of rounds: conditions and links that nobody knows beforehand, records for a replay and for an audit."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fl_lightning.audit.log import LogWriter, Row
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.loop import FederatedLoop
from fl_lightning.output import write_durably
from fl_lightning.parts.bases import Channel, Schedule
from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.traits import ScheduleTraits
from fl_lightning.system.traces import DELIVERIES, Answers, as_table, read_deliveries
from fl_lightning.types import Conditions, IntVector, RoundPlan, RoundResult, Vector
from fl_lightning.uploads.hidden import sampling_name

PARTICIPATION = "participation.csv"


class ObservedConditions(Remembers, RoundCallback, Schedule):
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

    not_in_trainer = "it learns from the uploads of other machines; use HeterogeneitySchedule"
    memory = ("_asked", "_lost", "_steps", "_reports")
    traits = ScheduleTraits(period=1, learns=True)  # as far as is known, every round is like the next

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
        self.num_steps, self.failure_rate = num_steps, failure_rate
        self.prior_draws, self.decay = prior_draws, decay
        self._make_room(0)

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return what is known of T and q of all clients."""
        if not len(self._asked):
            self._make_room(len(steps_per_epoch))
        rates = (self.prior_draws * self.failure_rate + self._lost) / (self.prior_draws + self._asked)
        before = np.full(len(rates), float(self.num_steps))
        mean = np.divide(self._steps, self._reports, out=before, where=self._reports > 0)
        return Conditions(np.maximum(1, np.rint(mean)).astype(np.int64), rates)

    def _make_room(self, num_clients: int) -> None:
        """Begin the sums over the rounds so far, each (M,)."""
        self._asked: Vector = np.zeros(num_clients)
        self._lost: Vector = np.zeros(num_clients)
        self._steps: Vector = np.zeros(num_clients)
        self._reports: Vector = np.zeros(num_clients)

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Learn from a round."""
        self.observe(result)

    def observe(self, result: RoundResult) -> None:
        """Take in who was asked, whose upload was delivered, and the steps that were reported."""
        if not len(self._asked):
            self._make_room(result.plan.profiles.num_clients)
        drawn = result.plan.cohort.clients
        delivered = result.delivered[drawn] > 0
        rows = np.isin(result.updates.clients, drawn[delivered])
        reporters = result.updates.clients[rows]
        self._asked[drawn] = self.decay * self._asked[drawn] + 1
        self._lost[drawn] = self.decay * self._lost[drawn] + ~delivered
        self._steps[reporters] = self.decay * self._steps[reporters] + result.updates.num_steps[rows]
        self._reports[reporters] = self.decay * self._reports[reporters] + 1


class Observed(RoundCallback, Channel):
    """Asks everybody who was drawn; what arrives in time is delivered.

    For deployments, where links are real. In the simulator every upload arrives, unless the engine replays a deployment
    (:class:`fl_lightning.engine.Replayed`).
    """

    not_in_trainer = "it waits for the uploads of other machines; use ChannelFailures"

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Refuse parts that need what a lost client did."""
        aggregator, sampling = loop.algorithm.aggregator, loop.algorithm.sampling
        if aggregator.traits.needs_lost_updates:
            raise ValueError(
                f"{type(aggregator).__name__} trains on from uploads that were lost, which nobody can know where "
                "links are real: use another aggregator, or simulate the links by ChannelFailures"
            )
        if sampling.traits.needs_all_updates:
            raise ValueError(
                f"{sampling_name(sampling)} needs the updates of all clients before it draws, but not all of them "
                "answer where links are real: use norms='stale', or simulate the links by ChannelFailures"
            )

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return the draws of each client: the loop leaves out those that do not arrive, (M,)."""
        return plan.cohort.counts


class DeliveryRecorder(RoundCallback):
    """Writes who answered and with how many steps, for :class:`fl_lightning.engine.Replayed`.

    Args:
        run_dir: The folder; the file is called ``deliveries.csv``.
    """

    not_in_trainer = "it records the answers of other machines; use no recorder"

    def __init__(self, run_dir: str) -> None:
        self.path = Path(run_dir) / DELIVERIES

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Start a new file, or cut an earlier one back to the round that is resumed."""
        if not isinstance(loop.engine, Answers):
            raise ValueError(
                f"DeliveryRecorder has nothing to record: {type(loop.engine).__name__} trains here, and everybody "
                "answers; leave the recorder out"
            )
        kept = read_deliveries(self.path, loop.round_index) if loop.round_index else []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.path, as_table(kept).encode())

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Append the answers of the round; one that was rejected counts as none."""
        rejected = {fault.client for fault in result.faults}
        answers = loop.engine.deliveries if isinstance(loop.engine, Answers) else []
        last = max((each.question for each in answers), default=0)
        rows = [
            replace(each, arrived=False) if each.question == last and each.client in rejected else each
            for each in answers
        ]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(as_table(rows, header=False))

    def on_federation_save(self, loop: FederatedLoop) -> None:
        """Make sure that no checkpoint is ever ahead of the file."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())


class ParticipationLog(RoundCallback):
    """Writes who was asked and whose upload arrived, for ``fl-lightning audit``.

    The first round has all clients, later ones those that were drawn.

    Args:
        path: Of the log; by default in the run's folder where the run has one. One that has the name is replaced.
    """

    not_in_trainer = "it records who takes part in rounds; use no log"

    def __init__(self, path: str = PARTICIPATION) -> None:
        self.path = Path(path)

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Begin a log, or cut an earlier one back to the round that is resumed."""
        traits = loop.algorithm.aggregator.traits
        if traits.keeps != "nothing" or not traits.linear:
            raise ValueError(
                f"{type(loop.algorithm.aggregator).__name__} makes steps not linearly, or not of the round's uploads "
                "alone, which a log of participation cannot show: use fl-lightning diagnose"
            )
        if loop.algorithm.uploads.secret is not None:
            raise ValueError("ParticipationLog writes who took part, which a private run's epsilon does not cover")
        self._writer = LogWriter(self.path, loop.round_index or None) if loop.fabric.is_global_zero else None

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Append the round."""
        if self._writer is None:
            return
        plan, sizes = result.plan, loop.federation.sizes
        planned, counts = plan.profiles.num_steps, plan.cohort.counts
        reported = dict(zip(result.updates.clients.tolist(), result.updates.num_steps.tolist(), strict=True))
        on_the_way = [each for each in (plan.expected.uploaded, plan.expected.measured) if each is not None]
        factors = plan.learning_rate * plan.server_scale / plan.cohort.num_draws * plan.coefficients
        factors = np.prod([factors, plan.profiles.accumulation / planned, *on_the_way], axis=0)
        self._writer.write(
            Row(
                round=plan.index,
                client=str(client),
                asked=int(counts[client]),
                arrived=int(result.delivered[client]),
                examples=int(sizes[client]),
                steps=reported.get(client, int(planned[client])),
                applied=float(factors[client]),
            )
            for client in (range(len(counts)) if plan.index == 1 else plan.cohort.clients.tolist())
        )
