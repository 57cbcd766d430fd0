"""Clock: how long every client takes in a round, and who is in time."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fl_lightning.aggregators import Aggregator
from fl_lightning.parts.bases import Channel
from fl_lightning.parts.protocols import Forecast
from fl_lightning.parts.traits import Asks
from fl_lightning.seeding import Purpose
from fl_lightning.system.availability import AvailabilityTrace, DayNight, OnOff, Phones, uniforms
from fl_lightning.system.pace import SCALAR_BYTES, Pace, Traffic, Values, client_values, normal, read_pace
from fl_lightning.system.traces import has_column
from fl_lightning.types import Arrivals, Asked, Cohort, Conditions, IntVector, Profiles, RoundCosts, RoundPlan, Vector

_HOPELESS = 0.99  # probability of missing the deadline from which on a client is not drawn


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    pace: Pace
    seed: int
    presence: Vector | None = None  # how often each client can be drawn; None: always
    rates: Vector | None = None  # how often each client is there; None: always


class Clock:
    r"""Says how many seconds a round takes each client, and the round, which lasts until its slowest client is done.

    .. math:: t_m = \ell_m + D / d_m + \xi_m T_m s_m + U / u_m

    with latency :math:`\ell`, D and U bytes at the rates d (down) and u (up), s seconds per step, and :math:`\xi` the
    jitter of this round. Every value may be one number for all, a list, a file of numbers, a range, a log-normal
    spread, or groups with their shares.

    Args:
        seconds_per_step: s, of a local step.
        upload_rate: u, bytes per second; by default uploads take no time.
        download_rate: d, bytes per second; by default downloads take no time.
        latency: Seconds of a client's round in which neither computes nor sends anything.
        follows_steps: Whether values from ranges and spreads are dealt out so that clients that take few steps are
            slow; otherwise they have nothing to do with T.
        jitter: Standard deviation of the logarithm of a factor on each client's local training, new in each round.
        trace: A CSV or JSON file with columns ``client`` (from 0), ``round`` (from 1; after the last round it starts
            again) and ``seconds_per_step`` and, as you like, ``upload_rate``, ``download_rate``, ``latency``, in place
            of the values above; a column ``available`` is the availability, unless another is given.
        deadline: Seconds after which a round ends; who is not done by then is lost. The probability of that adds to
            the failure rate that samplers and the diagnosis see; who has practically no chance is not drawn.
        take_first: End a round as soon as this many draws have arrived and leave the others out (over-selection: let
            ``clients_per_round`` be larger). It prefers fast clients, which Omega shows.
        availability: Who can be drawn in which round; everybody by default.
    """

    def __init__(
        self,
        seconds_per_step: Values = 1.0,
        upload_rate: Values | None = None,
        download_rate: Values | None = None,
        latency: Values = 0.0,
        follows_steps: bool = False,
        jitter: float = 0.0,
        trace: str | None = None,
        deadline: float | None = None,
        take_first: int | None = None,
        availability: Phones | DayNight | OnOff | AvailabilityTrace | None = None,
    ) -> None:
        if not 0 <= jitter < float("inf"):
            raise ValueError(f"jitter={jitter} must be a number from 0 up")
        if deadline is not None and not 0 < deadline < float("inf"):
            raise ValueError(f"deadline={deadline} must be a positive number of seconds: leave it out for none")
        if take_first is not None and take_first < 1:
            raise ValueError(f"take_first={take_first} must be at least 1: leave it out to wait for all")
        self.seconds_per_step, self.latency = seconds_per_step, latency
        self.upload_rate, self.download_rate = upload_rate, download_rate
        self.follows_steps, self.jitter = follows_steps, jitter
        self.deadline, self.take_first = deadline, take_first
        if trace is not None and availability is None and has_column(trace, "available"):
            availability = AvailabilityTrace(trace)
        self.availability = availability
        self._trace = read_pace(Path(trace)) if trace is not None else None
        self._drawn: _Drawn | None = None
        self.traffic = Traffic()

    @property
    def is_set_up(self) -> bool:
        """Whether it knows its clients: until then nothing can be said about seconds."""
        return self._drawn is not None

    @property
    def seed(self) -> int:
        """Of what it draws."""
        return self._started().seed

    @property
    def varies(self) -> bool:
        """Whether rounds differ in who can be drawn or in who is in time."""
        return self.availability is not None or (self.deadline is not None and self._trace is not None)

    @property
    def changes_pace(self) -> bool:
        """Whether clients take longer in some rounds than in others for the same work."""
        return self.jitter > 0 or self._trace is not None

    @property
    def changes_conditions(self) -> bool:
        """Whether clients are lost or cannot be drawn because of the clock."""
        return self.availability is not None or self.deadline is not None

    def setup(self, num_clients: int, seed: int, forecast: Forecast, traffic: Traffic) -> None:
        """Draw what is drawn once; ``forecast`` yields typical rounds, for speeds that follow T."""
        self.traffic = traffic
        order: Vector | None = None
        slow_rates: Vector | None = None
        if self.follows_steps:
            slow_rates = np.mean([each.conditions.offered_steps for each in forecast()], axis=0, dtype=np.float64)
            order = -slow_rates
        drawn = uniforms(seed, Purpose.CLOCK, 0, num_clients, 4)
        up = np.inf if self.upload_rate is None else self.upload_rate
        down = np.inf if self.download_rate is None else self.download_rate
        pace = Pace(
            seconds_per_step=client_values("seconds_per_step", self.seconds_per_step, drawn[:, 0], order),
            latency=client_values("latency", self.latency, drawn[:, 1], order),
            upload_rate=client_values("upload_rate", up, drawn[:, 2], slow_rates),
            download_rate=client_values("download_rate", down, drawn[:, 3], slow_rates),
        )
        pace.check()
        if self._trace is not None and len(self._trace[0].latency) != num_clients:
            raise ValueError(
                f"the clock's trace has {len(self._trace[0].latency)} clients, but there are {num_clients}"
            )
        rates = None if self.availability is None else self.availability.rates(num_clients, seed)
        self._drawn = _Drawn(pace=pace, seed=seed, rates=rates)
        fastest = min(self.times(1, np.ones(num_clients, dtype=np.int64), jitter=False)[1])
        if self.deadline is not None and fastest > self.deadline:
            raise ValueError(
                f"deadline={self.deadline:g} is over before the fastest client has made one step and sent it "
                f"({fastest:g} s): nobody could ever be in time"
            )
        self._drawn = replace(self._drawn, presence=self._presence(num_clients, forecast))

    def expecting(self, num_clients: int, forecast: Forecast) -> "Clock":
        """Return this clock for clients who are asked for other work than it was set up for."""
        clock = copy.copy(self)
        clock._drawn = replace(self._started(), presence=self._presence(num_clients, forecast))
        return clock

    def _presence(self, num_clients: int, forecast: Forecast) -> Vector | None:
        if not self.changes_conditions:
            return None
        rates = self._started().rates
        hopeful = [self._missing(profiles.num_steps, 1) <= _HOPELESS for profiles in forecast()]
        return np.asarray((1.0 if rates is None else rates) * np.mean(hopeful, axis=0), dtype=np.float64)

    def pace(self, round_index: int) -> Pace:
        """Return how fast all clients are in a round."""
        if self._trace is not None:
            return self._trace[(round_index - 1) % len(self._trace)]
        return self._started().pace

    def _started(self) -> _Drawn:
        if self._drawn is None:
            raise ValueError("the clock was not started: call Clock.setup first")
        return self._drawn

    def times(
        self, round_index: int, num_steps: IntVector, jitter: bool = True, clients: IntVector | None = None
    ) -> tuple[Vector, Vector]:
        """Return the seconds of local training and of the whole round of all clients, (M,) each, or of some, (n,)."""
        pace = self.pace(round_index)
        if clients is not None:
            pace, num_steps = pace.of(clients), num_steps[clients]
        training = num_steps * pace.seconds_per_step
        if jitter and self.jitter:
            who = len(num_steps) if clients is None else clients
            drawn = uniforms(self._started().seed, Purpose.CLOCK, round_index, who)[:, 0]
            training = training * np.exp(self.jitter * normal(drawn))
        return training, training + pace.waiting(self.traffic.download, self.traffic.upload)

    def between_jobs(self, round_index: int, num_steps: IntVector) -> Vector:
        """Return the seconds from one job of each client to the next where nobody waits for others, (M,).

        A client that is there in a share a of the time takes 1 / a times as long for the same work.
        """
        times, rates = self.times(round_index, num_steps)[1], self._started().rates
        return times if rates is None else times / np.maximum(rates, 1e-9)

    def seen(self, conditions: Conditions, round_index: int) -> Conditions:
        """Return the conditions of a round with the deadline in the failure rates, and with who can be drawn."""
        if not self.changes_conditions:
            return conditions
        drawn, num_clients = self._started(), len(conditions.num_steps)
        available = np.ones(num_clients, dtype=bool)
        if self.availability is not None:
            available = self.availability(num_clients, round_index, drawn.seed)
        missing = self._missing(conditions.num_steps, round_index)
        hopeful = available & (missing <= _HOPELESS)
        rates = 1 - (1 - conditions.failure_rates) * (1 - np.minimum(missing, _HOPELESS))
        return replace(
            conditions,
            failure_rates=rates,
            available=hopeful if hopeful.any() else available,  # a round in which all will be late is lost
            link_rates=conditions.failure_rates,
            presence=drawn.presence,
            chance=np.where(missing <= _HOPELESS, 1.0 if drawn.rates is None else drawn.rates, 0.0),
        )

    def _missing(self, num_steps: IntVector, round_index: int) -> Vector:
        """Return the probability that each client misses the deadline, (M,)."""
        if self.deadline is None:
            return np.zeros(len(num_steps))
        training, whole = self.times(round_index, num_steps, jitter=False)
        left = self.deadline - (whole - training)
        if not self.jitter:
            return (training > left).astype(np.float64)
        from scipy.special import ndtr

        ratio = np.divide(left, training, out=np.full(len(left), np.inf), where=training > 0)
        chance = ndtr(np.log(np.maximum(ratio, 1e-300)) / self.jitter)
        return np.where(left > 0, 1 - chance, 1.0)

    def first_factors(self, profiles: Profiles, cohort: Cohort, round_index: int) -> Vector | None:
        r"""Return the probability that a draw which arrives is among the first, (M,); None where all count.

        .. math:: f_m = P(\mathrm{Bin}(K' - 1, G_m) < K), \qquad G_m = \sum_{j: t_j < t_m} p_j (1 - q_j)

        which is exact for independent draws.
        """
        if self.take_first is None:
            return None
        from scipy.special import bdtr

        times = self.times(round_index, profiles.num_steps, jitter=False)[1]
        arriving = cohort.probabilities * (1 - profiles.failure_rates)
        order = np.argsort(times, kind="stable")
        ordered = times[order]
        before = np.cumsum(arriving[order]) - arriving[order]
        alike = np.searchsorted(ordered, ordered, side="left"), np.searchsorted(ordered, ordered, side="right") - 1
        ahead = np.empty(len(times))
        # Of clients that take equally long, the first in number counts first: half of them are ahead on average.
        ahead[order] = 0.5 * (before[alike[0]] + before[alike[1]] + arriving[order][alike[1]])
        others = cohort.num_draws - 1
        if others < self.take_first:
            return np.ones(len(times))
        return np.asarray(bdtr(self.take_first - 1, others, np.clip(ahead, 0, 1)), dtype=np.float64)

    def delivered(self, plan: RoundPlan, channel: Channel, seed: int) -> IntVector:
        """Return how many of each client's draws count: those that the channel delivers, in time, (M,)."""
        conditions = plan.profiles.conditions
        linked = plan
        if conditions.link_rates is not None:  # links see their own failure rates, without what the deadline adds
            alone = replace(conditions, failure_rates=conditions.link_rates, link_rates=None)
            profiles = replace(plan.profiles, conditions=alone)
            linked = replace(plan, expected=replace(plan.expected, profiles=profiles))
        arrived = channel.configure_delivery(linked, seed)
        return arrived if self.deadline is None and self.take_first is None else self._in_time(plan, arrived)

    def _in_time(self, plan: RoundPlan, arrived: IntVector) -> IntVector:
        if plan.cohort.arrivals is not None:
            raise ValueError("take_first has no meaning where clients do not wait for each other: leave it out")
        times = self.times(plan.index, plan.profiles.num_steps)[1]
        counted = arrived if self.deadline is None else np.where(times <= self.deadline, arrived, 0)
        if self.take_first is None:
            return counted
        order = np.argsort(times, kind="stable")
        before = np.cumsum(counted[order]) - counted[order]
        first = np.empty_like(counted)
        first[order] = np.clip(self.take_first - before, 0, counted[order])
        return first

    def charged(
        self, plan: RoundPlan, delivered: IntVector, aggregator: Aggregator, asks: Asks, asked: Asked
    ) -> RoundCosts:
        """Return what a round of an algorithm costs, given who answered a question before the draw, and how long."""
        answers = len(asked.clients) * (self.traffic.model if asks == "vectors" else SCALAR_BYTES)
        answers += asked.numbers * SCALAR_BYTES
        up, down = aggregator.protocol_bytes(plan, delivered)
        if plan.cohort.arrivals is not None:
            costs = self._asynchronous_costs(plan, plan.cohort.arrivals)
            return replace(costs, uplink_bytes=costs.uplink_bytes + up, downlink_bytes=costs.downlink_bytes + down)
        drawn, num_steps = plan.cohort.clients, plan.profiles.num_steps
        training, whole = self.times(plan.index, num_steps, clients=drawn)
        asking = plan.probed_steps * float(self.pace(plan.index).seconds_per_step.mean()) if plan.probed_steps else 0.0
        got = aggregator.downloads(plan, delivered)
        sent, fetched = self.traffic.total(drawn, got, asked.clients, answers)
        return RoundCosts(
            local_steps=int(num_steps[drawn].sum()) + plan.probed_steps,
            computation_time=float(training.sum()) + asking,
            round_time=self._round_time(whole, delivered[drawn]) + asking / len(num_steps),
            uplink_bytes=sent + up,
            downlink_bytes=fetched + down,
        )

    def _asynchronous_costs(self, plan: RoundPlan, arrivals: Arrivals) -> RoundCosts:
        """Return what the jobs cost that ended in this round; who sends twice has worked twice."""
        counts, num_steps = plan.cohort.counts, plan.profiles.num_steps
        num_jobs = int(counts.sum())
        return RoundCosts(
            local_steps=int(counts @ num_steps),
            computation_time=float(counts @ self.times(plan.index, num_steps)[0]),
            round_time=arrivals.elapsed,
            uplink_bytes=num_jobs * self.traffic.upload,
            downlink_bytes=num_jobs * self.traffic.download,
        )

    def _round_time(self, times: Vector, delivered: IntVector) -> float:
        if self.take_first is not None and delivered.sum() >= self.take_first:
            return float(times[delivered > 0].max())
        slowest = float(times.max(initial=0.0))
        return slowest if self.deadline is None else min(slowest, self.deadline)
