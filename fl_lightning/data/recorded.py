"""Recorded phones as clients: who is ready when, how fast they compute and send, as one plain trace file.

What is published without a licence is fetched from its makers by the user, verified, and never shipped. What the given
recordings leave open is drawn from the distributions of :class:`fl_lightning.system.Phones` and ``phones.yaml``.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_lightning.data.archives import PinnedFile
from fl_lightning.data.fetching import download
from fl_lightning.seeding import Purpose, generator
from fl_lightning.system import LogNormal, Phones
from fl_lightning.system.pace import client_values
from fl_lightning.system.traces import PhoneStates, read_latencies, read_speeds, read_states
from fl_lightning.types import Vector

_DAY = 86_400
_MOST_VALUES = 50_000_000  # rounds times clients
_COLUMNS = ("num_steps", "failure_rate", "seconds_per_step", "upload_rate", "download_rate")
_PAGE = "https://raw.githubusercontent.com/Carkham/FLHetBench/633c07138b0cfb1dc2e65c5c8462993a5a7bfb14"


@dataclass(frozen=True, kw_only=True)
class Recording(PinnedFile):
    """A published file."""

    path: str  # where its makers keep it


RECORDINGS = {
    "flash": Recording(
        name="flash_user_states.json",
        path="data/cached_timers.json",
        digest="a4b0f08431e07174abfc86ce01d07904877880fa069a7deae52ae9b13141ef98",
    ),
    "mobiperf": Recording(
        name="mobiperf_speeds.json",
        path="bench/speed_distri.json",
        digest="63f9e869b34ceb3fb845f755b48018f55941a1b002c02abb21255d9bf5bedea4",
    ),
    "latency": Recording(
        name="phone_training_latency.json",
        path="data/training_latency.json",
        digest="b3a0b0c095edfa8f5fab354015b29c4da7b5513f42cf4b77dac8663cb3273f52",
    ),
}


def recording(name: str, root: Path) -> Path:
    """Return the file of a recording in the data folder; what is not there is fetched first."""
    wanted = RECORDINGS[name]
    url = f"{_PAGE}/{wanted.path}"
    ways = [lambda target: download(url, target, wanted.digest)]
    wanted.obtain(root, ways, f"Put {url} into {root} as {wanted.name}")
    return root / wanted.name


@dataclass(frozen=True, kw_only=True)
class Span:
    """Which rounds a trace has, and what is asked of clients in them."""

    days: int = 7
    minutes: float = 60.0  # from one round to the next
    round_seconds: float = 60.0  # that a client must stay; it is lost if it leaves before
    num_steps: int = 10  # T

    def __post_init__(self) -> None:
        if not (1 <= self.days <= 366 and 1 <= self.minutes <= 1440 and self.round_seconds >= 0):
            raise ValueError(
                f"days={self.days} must be 1 to 366, minutes={self.minutes:g} 1 to 1440, and "
                f"round_seconds={self.round_seconds:g} at least 0"
            )
        if not 1 <= self.num_steps <= 1_000_000:
            raise ValueError(f"num_steps={self.num_steps} must be 1 to 1,000,000")

    @property
    def times(self) -> Vector:
        """When rounds begin, in seconds from a midnight, (rounds,)."""
        return np.arange(0, self.days * _DAY, self.minutes * 60, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class PhoneTrace:
    """Clients made of recordings."""

    available: npt.NDArray[np.bool_]  # in each round, (rounds, M)
    values: dict[str, Vector]  # of each client, the same in all rounds, (M,) each

    def as_csv(self) -> str:
        """Return a row for each client in each round, as schedules and clocks read it."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["round", "client", "available", *_COLUMNS])
        own = [[f"{self.values[name][client]:.6g}" for name in _COLUMNS] for client in range(self.available.shape[1])]
        for index, there in enumerate(self.available.astype(int).tolist(), start=1):
            writer.writerows([index, client, flag, *own[client]] for client, flag in enumerate(there))
        return text.getvalue()


def phone_trace(files: Mapping[str, Path], num_clients: int, seed: int, span: Span | None = None) -> PhoneTrace:
    """Return clients whose availability, step time and speed are those of recorded devices, drawn by the seed.

    Args:
        files: Of recordings, by the names of ``RECORDINGS``; what is left out is drawn from its distribution.
        num_clients: M; more clients than devices: some devices stand for several.
        seed: Which devices are taken, and what is drawn.
        span: The rounds.
    """
    span = span or Span()
    times = span.times
    if not 1 <= num_clients <= _MOST_VALUES // len(times):
        raise ValueError(f"clients={num_clients} must be 1 to {_MOST_VALUES // len(times):,} for {len(times)} rounds")
    rng = generator(seed, Purpose.TRACE)
    pace = _pace(files, num_clients, rng)
    if "flash" in files:
        phones = read_states(files["flash"])
        chosen = [phones[each] for each in _devices(len(phones), num_clients, rng)]
        available = np.column_stack([_ready(phone, times) for phone in chosen])
        failing = np.array([_leaving(phone, span.round_seconds) for phone in chosen])
    else:
        hours = Phones(period=round(1440 / span.minutes)).hours(num_clients, seed)
        available = rng.random((len(times), num_clients)) < hours[np.arange(len(times)) % len(hours)]
        failing = 0.2 * rng.random(num_clients)
    if not available.any():
        raise ValueError(f"none of {num_clients} phones is ever ready when a round begins: take more, or more days")
    found = (np.full(num_clients, float(span.num_steps)), failing, *pace)
    return PhoneTrace(available=available, values=dict(zip(_COLUMNS, found, strict=True)))


def _pace(files: Mapping[str, Path], num_clients: int, rng: np.random.Generator) -> tuple[Vector, Vector, Vector]:
    """Return seconds per step, and bytes per second up and down, of each client, (M,) each."""
    uniforms = rng.random((num_clients, 3))
    steps = client_values("seconds_per_step", LogNormal(0.17, 0.8), uniforms[:, 0])
    down = client_values("download_rate", LogNormal(5.4e5, 0.5), uniforms[:, 1])
    up = client_values("upload_rate", LogNormal(4.1e5, 0.7), uniforms[:, 2])
    if "latency" in files:
        measured = read_latencies(files["latency"])
        steps = measured[_devices(len(measured), num_clients, rng)]
    if "mobiperf" in files:
        devices = read_speeds(files["mobiperf"])
        speeds = devices[_devices(len(devices), num_clients, rng)]
        spread = rng.standard_normal((num_clients, 2))
        drawn = np.maximum(speeds[:, [0, 2]] + speeds[:, [1, 3]] * spread, 0.1 * speeds[:, [0, 2]])
        down, up = drawn[:, 0], drawn[:, 1]
    return steps, up, down


def _devices(number: int, num_clients: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return which device each client is: all different as far as there are enough."""
    rounds = -(-num_clients // number)
    return np.concatenate([rng.permutation(number) for _ in range(rounds)])[:num_clients]


def _ready(phone: PhoneStates, times: Vector) -> npt.NDArray[np.bool_]:
    """Return whether a phone is ready at each time; its record is repeated by whole days, at its hours of the day.

    >>> phone = PhoneStates(0.0, 86400.0, np.array([[3600.0, 7200.0]]))
    >>> _ready(phone, np.array([0.0, 3600.0, 7200.0, 90000.0])).tolist()
    [False, True, False, True]
    """
    whole = max(1.0, np.floor((phone.end - phone.start) / _DAY)) * _DAY
    seconds = phone.start + (times - phone.start) % whole
    place = np.searchsorted(phone.ready[:, 0], seconds, side="right") - 1
    ends = np.append(phone.ready[:, 1], -np.inf)  # before the first stay
    return np.asarray(seconds < ends[place])


def _leaving(phone: PhoneStates, seconds: float) -> float:
    """Return the probability that a ready phone leaves within some seconds: of its time, the last ones of each stay.

    >>> round(_leaving(PhoneStates(0.0, 9.0, np.array([[0.0, 2.0], [3.0, 9.0]])), 3.0), 3)
    0.625
    """
    stays = phone.ready[:, 1] - phone.ready[:, 0]
    return min(0.95, float(np.minimum(stays, seconds).sum() / stays.sum())) if len(stays) else 0.0
