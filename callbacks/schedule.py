"""HeterogeneitySchedule: T and q of every client in every round; q also from where clients are in a radio cell."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.rounds import OneClient, global_seed
from fl_lightning.parts.bases import Schedule
from fl_lightning.parts.traits import ScheduleTraits
from fl_lightning.seeding import Purpose, generator
from fl_lightning.system.availability import uniforms
from fl_lightning.system.pace import bounds, members
from fl_lightning.system.traces import Column, read_numbers, read_trace, whole
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Conditions, IntVector, Vector


def rayleigh_outage(
    distances: npt.ArrayLike,
    cell_radius: float,
    edge_snr_db: float,
    threshold_db: float,
    path_loss_exponent: float = 3.5,
    shadowing_db: npt.ArrayLike = 0.0,
) -> Vector:
    r"""Return the probability that the signal fades below what decoding needs.

    With path loss and shadowing the mean signal-to-noise ratio is
    :math:`\bar\gamma_m = \gamma_\mathrm{edge} - 10 \alpha \log_{10}(d_m / d_\mathrm{edge}) + S_m` in dB; under Rayleigh
    fading the ratio itself is exponentially distributed around it, so

    .. math:: q_m = 1 - e^{-\gamma_\mathrm{threshold} / \bar\gamma_m}

    Args:
        distances: d, of each client from the base station, (M,).
        cell_radius: Distance at which the mean ratio is ``edge_snr_db``.
        edge_snr_db: Mean ratio at the edge of the cell.
        threshold_db: Ratio below which an upload is lost.
        path_loss_exponent: alpha; 2 in free space, 3 to 4 in towns.
        shadowing_db: S, what obstacles add to or take from each client, (M,).

    >>> rayleigh_outage([50, 100], cell_radius=100, edge_snr_db=10, threshold_db=0, path_loss_exponent=2).round(4)
    array([0.0247, 0.0952])
    """
    d = np.asarray(distances, dtype=np.float64)
    if not (np.isfinite(d).all() and (d > 0).all()):
        raise ValueError("distances must be positive numbers: nobody is at the antenna itself")
    mean_db = edge_snr_db - 10 * path_loss_exponent * np.log10(d / cell_radius) + np.asarray(shadowing_db)
    return -np.expm1(-(10 ** ((threshold_db - mean_db) / 10)))


@dataclass(frozen=True, kw_only=True)
class RayleighOutage:
    """Failure rates of clients in a radio cell; give it to the schedule in place of numbers.

    So the sampler knows the rates, and :class:`ChannelFailures` loses uploads by them: fading is independent from round
    to round, which makes a lost upload a Bernoulli event of the outage probability.

    Args:
        edge_snr_db: Mean signal-to-noise ratio at the edge of the cell.
        threshold_db: Ratio below which an upload is lost.
        cell_radius: Of the cell.
        min_distance: Nobody is nearer than this.
        distances: Of each client; by default clients are spread evenly over the area of the cell, once in a run.
        path_loss_exponent: 2 in free space, 3 to 4 in towns.
        shadowing_db: Standard deviation of what obstacles do to a client's signal.
        dynamic: Whether shadowing is drawn anew in each round; otherwise once.
        max_failure_rate: Nobody is worse: a client whose uploads never arrive cannot be compensated.
    """

    edge_snr_db: float = 6.0
    threshold_db: float = 3.0
    cell_radius: float = 500.0
    min_distance: float = 25.0
    distances: list[float] | None = None
    path_loss_exponent: float = 3.5
    shadowing_db: float = 0.0
    dynamic: bool = True
    max_failure_rate: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.min_distance < self.cell_radius:
            raise ValueError(
                f"min_distance={self.min_distance} must be above 0 and below cell_radius={self.cell_radius}"
            )
        if self.distances is not None and not all(distance > 0 for distance in self.distances):
            raise ValueError(f"distances={self.distances} must be positive")
        if not self.shadowing_db >= 0 or not 0 < self.max_failure_rate < 1:
            raise ValueError(
                f"shadowing_db={self.shadowing_db} must be at least 0 and max_failure_rate={self.max_failure_rate} "
                "between 0 and 1"
            )

    def __call__(self, num_clients: int, round_index: int, seed: int) -> Vector:
        """Return q of each client in a round, (M,)."""
        if self.distances is not None and len(self.distances) != num_clients:
            raise ValueError(f"distances has {len(self.distances)} entries, but there are {num_clients} clients")
        # Not from the generator of the same purpose, which draws T.
        area = uniforms(seed, Purpose.CONDITIONS, 0, num_clients, 3)[:, 0]
        near, far = self.min_distance**2, self.cell_radius**2
        distances = np.sqrt(near + area * (far - near)) if self.distances is None else np.asarray(self.distances)
        drawn = uniforms(seed, Purpose.CONDITIONS, round_index if self.dynamic else 0, num_clients, 3)
        normal = np.sqrt(-2 * np.log1p(-drawn[:, 1])) * np.cos(2 * np.pi * drawn[:, 2])  # Box and Muller
        rates = rayleigh_outage(
            distances,
            self.cell_radius,
            self.edge_snr_db,
            self.threshold_db,
            self.path_loss_exponent,
            self.shadowing_db * normal,
        )
        return np.minimum(rates, self.max_failure_rate)


_MAX_STEPS = 1_000_000  # of a client in a round


@dataclass(frozen=True)
class Ramp:
    """Values that rise or fall evenly from the first client to the last."""

    first: float
    last: float


@dataclass(frozen=True)
class Group:
    """Clients that draw their T and q from the same ranges.

    Args:
        share: Fraction of all clients that belong to it.
        num_steps: T, or the lowest and the highest T, both included.
        failure_rates: q, or its lowest and highest value.
    """

    share: float
    num_steps: int | tuple[int, int]
    failure_rates: float | tuple[float, float]


Steps = int | list[int] | Ramp | str
Rates = float | list[float] | Ramp | str
Unit = Literal["iterations", "epochs"]


class HeterogeneitySchedule(OneClient, Callback, Schedule):
    """Decides how many local steps every client takes and how often its upload fails.

    Give one of: ``groups`` (ranges from which each client draws), ``num_steps`` with ``failure_rates`` (fixed values:
    one number for all, a list with one for each client, or a ramp), or ``trace`` (a file).

    All clients get values in each round, drawn or not, from a stream of their own: every algorithm under one seed meets
    the same conditions.

    Args:
        groups: Groups of clients in the order of their numbers.
        num_steps: T of each client; a text is a file with one number for each (.csv, .json, .npy).
        failure_rates: q of each client, each in [0, 1).
        trace: A CSV or JSON file with columns ``client`` (from 0), ``num_steps``, ``failure_rate`` and, where they
            change, ``round`` (from 1; after the last round it starts again).
        dynamic: With groups, draw anew in each round; otherwise once.
        unit: What T counts: ``iterations`` (optimizer steps) or ``epochs`` (passes over the client's data).
        radio: Failure rates from distance and signal strength, in place of those of groups, numbers or trace.
    """

    def __init__(
        self,
        groups: list[Group] | None = None,
        num_steps: Steps | None = None,
        failure_rates: Rates | None = None,
        trace: str | None = None,
        dynamic: bool = True,
        unit: Unit = "iterations",
        radio: RayleighOutage | None = None,
    ) -> None:
        one_of("unit", unit, Unit)
        fixed = num_steps is not None or failure_rates is not None
        if (groups is not None) + fixed + (trace is not None) != 1:
            raise ValueError("give exactly one of: groups, num_steps with failure_rates, trace")
        if fixed and (num_steps is None or (failure_rates is None and radio is None)):
            raise ValueError("num_steps and failure_rates go together: give both (or num_steps and radio)")
        self.groups = [_checked_group(group) for group in groups] if groups is not None else None
        self.num_steps, self.failure_rates = num_steps, failure_rates
        self.dynamic, self.unit = dynamic, unit
        self.radio = radio
        self._trace = read_conditions(trace) if trace is not None else None
        self._loader_batches: float | None = None  # of all the data there

    @property
    def traits(self) -> ScheduleTraits:
        """After how many rounds the conditions repeat themselves."""
        if self.radio is not None and self.radio.dynamic and self.radio.shadowing_db:
            return ScheduleTraits()
        if self._trace is not None:
            return ScheduleTraits(period=len(self._trace))
        return ScheduleTraits(period=None if self.groups is not None and self.dynamic else 1)

    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return T and q of all clients in this round."""
        num_clients = len(steps_per_epoch)
        if self._trace is not None:
            num_steps, rates = self._trace[(round_index - 1) % len(self._trace)]
            _check_length("the trace", len(num_steps), num_clients)
        elif self.groups is not None:
            rng = generator(seed, Purpose.CONDITIONS, round_index if self.dynamic else 0)
            num_steps, rates = _draw_groups(self.groups, num_clients, rng)
        else:
            num_steps = np.rint(_spread("num_steps", self.num_steps, num_clients)).astype(np.int64)
            rates = _spread("failure_rates", self.failure_rates, num_clients)
        if self.radio is not None:
            rates = self.radio(num_clients, round_index, seed)
        _check_values(num_steps, rates)
        if self.unit == "epochs":
            num_steps = num_steps * steps_per_epoch
            _check_values(num_steps, rates)
        return Conditions(num_steps, rates)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a plain Trainer, which is one client: end this epoch after T batches, or with the data."""
        if self._loader_batches is None:
            self._loader_batches = trainer.num_training_batches
        loader_batches = self._loader_batches
        batches = 1 if loader_batches == float("inf") else loader_batches
        everybody = np.full(self.num_clients, batches, dtype=np.int64)
        conditions = self.configure_conditions(trainer.current_epoch + 1, everybody, global_seed())
        self.failure_rate = float(conditions.failure_rates[self.client])
        num_batches = int(min(conditions.num_steps[self.client] * trainer.accumulate_grad_batches, loader_batches))
        trainer.fit_loop.max_batches = num_batches
        if isinstance(trainer.val_check_interval, float):  # validate at the end of the shortened epoch
            trainer.val_check_batch = max(1, int(num_batches * trainer.val_check_interval))


def _checked_group(group: Group) -> Group:
    if not 0 < group.share <= 1:
        raise ValueError(f"a group's share={group.share} must be in (0, 1]")
    for name, value in (("num_steps", group.num_steps), ("failure_rates", group.failure_rates)):
        low, high = bounds(value)
        if not low <= high:
            raise ValueError(f"a group's {name}={value} must go from a lower to a higher value")
    _check_values(np.array(bounds(group.num_steps)), np.array(bounds(group.failure_rates), dtype=np.float64))
    return group


def _draw_groups(groups: list[Group], num_clients: int, rng: np.random.Generator) -> tuple[IntVector, Vector]:
    shares = np.array([group.share for group in groups])
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"the shares of the groups must add up to 1, but add up to {shares.sum():g}")
    parts = list(zip(groups, members(shares, num_clients), strict=True))
    steps, rates = np.empty(num_clients, dtype=np.int64), np.empty(num_clients)
    # Group by group, because numpy draws from common bounds several times faster than from bounds of each client.
    for group, own in parts:
        low, high = bounds(group.num_steps)
        steps[own] = rng.integers(low, high, size=own.stop - own.start, endpoint=True)
    rng.random(out=rates)
    for group, own in parts:
        lowest, highest = bounds(group.failure_rates)
        rates[own] *= highest - lowest
        rates[own] += lowest
    return steps, rates


def _spread(name: str, value: Steps | Rates | None, num_clients: int) -> Vector:
    if isinstance(value, Ramp):
        return np.linspace(value.first, value.last, num_clients)
    numbers = read_numbers(value).tolist() if isinstance(value, str) else value
    if isinstance(numbers, (list, tuple)):
        _check_length(name, len(numbers), num_clients)
        return np.asarray(numbers, dtype=np.float64)
    return np.full(num_clients, float(numbers or 0))


def _check_length(name: str, length: int, num_clients: int) -> None:
    if length != num_clients:
        raise ValueError(f"{name} has {length} clients, but the data has {num_clients}: give one value for each client")


def _check_values(num_steps: IntVector, failure_rates: Vector) -> None:
    good = (num_steps >= 1) & (num_steps <= _MAX_STEPS)
    if not good.all():
        bad = int(np.argmin(good))
        wanted = "at least 1" if not num_steps[bad] >= 1 else f"at most {_MAX_STEPS:,}, or a round would never end"
        raise ValueError(f"num_steps={num_steps[bad]} (entry {bad}) must be {wanted}")
    good = (failure_rates >= 0) & (failure_rates < 1)
    if not good.all():
        bad = int(np.argmin(good))
        raise ValueError(
            f"failure_rates={failure_rates[bad]} (entry {bad}) must be in [0, 1): "
            "a client whose uploads never arrive cannot be compensated, leave it out"
        )


def read_conditions(path: str) -> list[tuple[IntVector, Vector]]:
    """Return T and q of each round of a trace file."""
    columns = [Column("num_steps", whole), Column("failure_rate")]
    table = read_trace(path, columns, "client, num_steps, failure_rate (and round)", every_round=False)
    found = list(zip(table["num_steps"].astype(np.int64), table["failure_rate"], strict=True))
    for num_steps, rates in found:
        _check_values(num_steps, rates)
    return found
