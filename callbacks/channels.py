"""Channels: whose upload arrives."""

import copy
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.rounds import OneClient, RoundCallback, global_seed
from fl_lightning.parts.bases import Channel
from fl_lightning.seeding import Purpose, generator
from fl_lightning.system.availability import uniforms
from fl_lightning.system.traces import read_flags
from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, RoundPlan, Vector

Multiplicity = Literal["shared", "independent"]


class ChannelFailures(OneClient, Callback, Channel):
    r"""Loses each upload with the client's failure probability, :math:`Z_m \sim \mathrm{Ber}(1 - q_m)`.

    The links of all M clients are drawn in each round, also of those that send nothing, so every algorithm under one
    seed meets the same links.

    Args:
        multiplicity: ``shared``: a client drawn n times sends once, and all n draws arrive or none does.
            ``independent``: each of its n draws has a link of its own.
        failure_rate: In a plain Trainer, the probability that an epoch is lost: weights and optimizers go back to where
            they were. A ``HeterogeneitySchedule`` beside it gives one too.
    """

    def __init__(self, multiplicity: Multiplicity = "shared", failure_rate: float | None = None) -> None:
        one_of("multiplicity", multiplicity, Multiplicity)
        if failure_rate is not None and not 0 <= failure_rate < 1:
            raise ValueError(f"failure_rate={failure_rate} must be in [0, 1)")
        self.multiplicity, self.failure_rate = multiplicity, failure_rate
        self.num_lost = 0  # epochs lost in a plain Trainer
        self._before: tuple[dict[str, torch.Tensor], list[dict[str, Any]]] | None = None

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rng = generator(seed, Purpose.LINK, plan.index)
        return arrivals(plan.profiles.failure_rates, plan.cohort.counts, self.multiplicity, rng)

    def arrives(self, round_index: int, failure_rate: float, seed: int = 0) -> bool:
        """Return whether the upload of the client that :meth:`as_client` names arrives, for a loop of your own."""
        luck = generator(seed, Purpose.LINK, round_index).random(self.num_clients)
        return bool(luck[self.client] >= failure_rate)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a plain Trainer: remember where the epoch began."""
        weights = {name: value.detach().clone() for name, value in pl_module.state_dict().items()}
        self._before = weights, [copy.deepcopy(optimizer.state_dict()) for optimizer in trainer.optimizers]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a plain Trainer: lose the epoch with probability q."""
        arrived = self.arrives(trainer.current_epoch + 1, self._rate(trainer), global_seed())
        if not arrived and self._before is not None:
            weights, optimizers = self._before
            pl_module.load_state_dict(weights)
            for optimizer, state in zip(trainer.optimizers, optimizers, strict=True):
                optimizer.load_state_dict(state)
            self.num_lost += 1
        self._before = None
        pl_module.log("num_delivered", float(arrived))

    def _rate(self, trainer: Trainer) -> float:
        if self.failure_rate is not None:
            return self.failure_rate
        beside: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # which its connector sets
        for callback in beside:
            if isinstance(callback, OneClient) and callback.failure_rate is not None:
                return callback.failure_rate
        raise MisconfigurationException(
            "ChannelFailures in a plain Trainer needs a failure rate: give failure_rate=0.3, or put a "
            "HeterogeneitySchedule beside it"
        )


def arrivals(
    failure_rates: Vector, counts: IntVector, multiplicity: Multiplicity, rng: np.random.Generator
) -> IntVector:
    """Return how many of n draws of each client arrive over links that fail at random, (M,).

    Links of all clients are drawn for the first draw, then for the second, and so on: a client's links depend neither
    on who else was drawn nor, for its first draw, on the multiplicity.

    >>> arrivals(np.array([0.0, 0.5, 1.0]), np.array([2, 0, 3]), "shared", np.random.default_rng(0)).tolist()
    [2, 0, 0]
    """
    if multiplicity == "shared":
        return counts * (rng.random(len(counts)) >= failure_rates)
    arrived = np.zeros(len(counts), dtype=np.int64)
    for draw in range(int(counts.max(initial=0))):
        arrived += (rng.random(len(counts)) >= failure_rates) & (draw < counts)
    return arrived


class GilbertElliott(RoundCallback, Channel):
    r"""Loses uploads in bursts: each client's link is a chain of two states, and in the bad one uploads are lost.

    The share of time in the bad state is :math:`b_m = q_m / h` with h the loss probability in it, so that the long-run
    loss rate is the client's q. Such a chain with mean burst length L is one that draws its state afresh with
    probability :math:`\nu_m = 1 / (L (1 - b_m))` in each round and keeps it otherwise:

    .. math:: P(\text{bad} \to \text{good}) = \nu_m (1 - b_m) = 1/L, \qquad P(\text{good} \to \text{bad}) = \nu_m b_m

    In that form the state of a round is a function of the seed: that of the last fresh draw. Nothing has to be stored,
    a resumed run meets the same bursts, and the loss rate is exactly q in each round even where q changes.

    Args:
        burst_length: L, mean number of rounds in the bad state. Independent losses have bursts of 1 / (1 - q) already;
            a client for which L is less than that has independent losses.
        loss_when_bad: h. A client's q must stay below it.
        multiplicity: Of a client drawn n times in the bad state. ``shared``: all n draws are lost or none is.
            ``independent``: each is lost on its own (the same unless h is below 1, because all of them meet one state).
    """

    not_in_trainer = "it relates the links of rounds and clients; use ChannelFailures"

    def __init__(self, burst_length: float, loss_when_bad: float = 1.0, multiplicity: Multiplicity = "shared") -> None:
        if not 1 <= burst_length < float("inf"):
            raise ValueError(f"burst_length={burst_length} must be a number of at least 1 round")
        if not 0 < loss_when_bad <= 1:
            raise ValueError(f"loss_when_bad={loss_when_bad} must be above 0 and at most 1")
        one_of("multiplicity", multiplicity, Multiplicity)
        self.burst_length, self.loss_when_bad = burst_length, loss_when_bad
        self.multiplicity = multiplicity

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rates = plan.profiles.failure_rates
        bad_share = rates / self.loss_when_bad
        if (bad_share >= 1).any():
            client = int(np.argmax(bad_share))
            raise ValueError(
                f"client {client} has a failure rate of {rates[client]:.3f}, but it must stay below "
                f"loss_when_bad={self.loss_when_bad}: raise loss_when_bad"
            )
        fresh_rates = np.minimum(1, 1 / (self.burst_length * (1 - bad_share)))
        loss = np.where(_levels(fresh_rates, plan.index, seed) < bad_share, self.loss_when_bad, 0.0)
        return arrivals(loss, plan.cohort.counts, self.multiplicity, generator(seed, Purpose.LINK, plan.index))


def _levels(fresh_rates: Vector, round_index: int, seed: int) -> Vector:
    """Return each client's uniform number of the last round up to this one in which it drew a fresh one, (M,)."""
    levels = np.empty(len(fresh_rates))
    pending = np.arange(len(fresh_rates))
    for index in range(round_index, -1, -1):  # round 0, before the first, is fresh for all: stationary from the start
        drawn = uniforms(seed, Purpose.LINK, index, pending, 2)
        is_fresh = (drawn[:, 0] < fresh_rates[pending]) | (index == 0)
        levels[pending[is_fresh]] = drawn[is_fresh, 1]
        pending = pending[~is_fresh]
        if not len(pending):
            break
    return levels


class GroupFailures(RoundCallback, Channel):
    r"""Lets the clients of a group fail together, as behind one base station; each client still fails with its own q.

    A client shares its group's fate with probability :math:`\rho` and has its own otherwise. A fate is a uniform number
    u in each round, and a client is lost where :math:`u < q_m`: of a group with one fate the less reliable fail
    whenever the more reliable do. Two clients of a group with equal q have failures of correlation :math:`\rho^2`. All
    draws of a client in a round share its fate.

    Args:
        groups: Number of groups, cut in the order of the clients' numbers; or the group of each client.
        correlation: rho.
    """

    not_in_trainer = "it relates the links of rounds and clients; use ChannelFailures"

    def __init__(self, groups: int | list[int], correlation: float = 1.0) -> None:
        if isinstance(groups, int) and groups < 1:
            raise ValueError(f"groups={groups} must be at least 1")
        if not isinstance(groups, int) and (not groups or min(groups) < 0):
            raise ValueError(f"groups={groups} must give a group, counted from 0, for each client")
        if not 0 <= correlation <= 1:
            raise ValueError(f"correlation={correlation} must be between 0 and 1")
        self.groups, self.correlation = groups, correlation

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rates, counts = plan.profiles.failure_rates, plan.cohort.counts
        members = self._members(len(rates))
        rng = generator(seed, Purpose.LINK, plan.index)
        own, shares_fate = rng.random(len(rates)), rng.random(len(rates)) < self.correlation
        fates = rng.random(int(members.max()) + 1)[members]
        return np.where(np.where(shares_fate, fates, own) >= rates, counts, 0)

    def _members(self, num_clients: int) -> IntVector:
        if isinstance(self.groups, int):
            return np.arange(num_clients) * self.groups // num_clients
        if len(self.groups) != num_clients:
            raise ValueError(f"groups has {len(self.groups)} entries, but there are {num_clients} clients")
        return np.asarray(self.groups, dtype=np.int64)


class TraceChannel(RoundCallback, Channel):
    """Delivers what a file says: no chance, and the failure rates of the schedule have no part in it.

    They are still what samplers and aggregators believe; where they should be those of the trace, give the schedule
    ``1 - channel.arrived.mean(axis=0)``.

    Args:
        path: A CSV or JSON file with columns ``client`` (from 0), ``round`` (from 1; after the last round it starts
            again) and ``arrived`` (1 or 0, true or false).

    Attributes:
        arrived: Whether the upload of each client arrives in each round, (rounds, M).
    """

    not_in_trainer = "it relates the links of rounds and clients; use ChannelFailures"

    def __init__(self, path: str) -> None:
        self.path = path
        self.arrived = read_flags(path, "arrived")

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        counts = plan.cohort.counts
        if self.arrived.shape[1] != len(counts):
            raise ValueError(f"{self.path} has {self.arrived.shape[1]} clients, but the federation has {len(counts)}")
        return np.where(self.arrived[(plan.index - 1) % len(self.arrived)], counts, 0)
