"""How fast clients are, from what a user writes or a trace has, and how large the messages are that they send."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from fl_lightning.aggregators import Aggregator
from fl_lightning.system.traces import Column, read_numbers, read_trace
from fl_lightning.types import IntVector, ModelState, Vector
from fl_lightning.uploads import Uploads


@dataclass(frozen=True)
class Between:
    """Values drawn evenly between two bounds, once for each client."""

    low: float
    high: float


@dataclass(frozen=True)
class LogNormal:
    """Values spread log-normally, once for each client: ``median * exp(sigma * normal)``.

    Args:
        median: Half of the clients are above it.
        sigma: Standard deviation of the logarithm; 0.5 makes the slowest tenth about twice as slow as the median.
    """

    median: float
    sigma: float


@dataclass(frozen=True)
class Share:
    """A group of clients in the order of their numbers.

    Args:
        share: Fraction of all clients that belong to it.
        value: Of each of them, or the lowest and the highest value.
    """

    share: float
    value: float | tuple[float, float]


Number = TypeVar("Number", int, float)
Values = float | list[float] | list[Share] | Between | LogNormal | str


def client_values(name: str, values: Values, uniforms: Vector, order: Vector | None = None) -> Vector:
    """Return one value for each client, (M,); a text is a file of numbers.

    Ranges and spreads are drawn from ``uniforms`` and, where an ``order`` is given, dealt out by it: the client with
    the largest entry gets the largest.

    >>> client_values("latency", [Share(0.5, 2.0), Share(0.5, 1.0)], np.array([0.1, 0.9, 0.5, 0.2])).tolist()
    [2.0, 2.0, 1.0, 1.0]
    >>> client_values("latency", Between(1.0, 3.0), np.array([0.0, 0.5]), order=np.array([7.0, 5.0])).tolist()
    [2.0, 1.0]
    """
    num_clients = len(uniforms)
    if isinstance(values, Between):
        return _dealt(_between(name, values.low, values.high, uniforms), order)
    if isinstance(values, LogNormal):
        if not (values.median > 0 and 0 <= values.sigma < float("inf")):
            raise ValueError(f"{name}: median={values.median} must be above 0 and sigma={values.sigma} at least 0")
        return _dealt(values.median * np.exp(values.sigma * normal(uniforms)), order)
    given = read_numbers(values).tolist() if isinstance(values, str) else values
    if not isinstance(given, (list, tuple)):
        return np.full(num_clients, float(given))
    groups = [group for group in given if isinstance(group, Share)]
    if groups:
        return _of_groups(name, groups, uniforms)
    if len(given) != num_clients:
        raise ValueError(f"{name} has {len(given)} values, but there are {num_clients} clients: give one for each")
    return np.asarray(given, dtype=np.float64)


def normal(uniforms: Vector) -> Vector:
    """Return standard normal numbers made of uniform ones."""
    from scipy.special import ndtri

    return np.asarray(ndtri(uniforms * (1 - 2e-12) + 1e-12), dtype=np.float64)


def _between(name: str, low: float, high: float, uniforms: Vector) -> Vector:
    if not low <= high:
        raise ValueError(f"{name}: low={low} must not be above high={high}")
    return np.asarray(low + (high - low) * uniforms, dtype=np.float64)


def _dealt(drawn: Vector, order: Vector | None) -> Vector:
    if order is None:
        return drawn
    dealt = np.empty_like(drawn)
    dealt[np.argsort(order, kind="stable")] = np.sort(drawn)
    return dealt


def _of_groups(name: str, groups: list[Share], uniforms: Vector) -> Vector:
    shares = np.array([group.share for group in groups])
    if not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"{name}: the shares {shares.tolist()} must be positive and add up to 1")
    parts = zip(groups, members(shares, len(uniforms)), strict=True)
    return np.concatenate([_between(name, *bounds(group.value), uniforms[own]) for group, own in parts])


def members(shares: Vector, num_clients: int) -> list[slice]:
    """Return which clients belong to each of some groups, in the order of their numbers.

    >>> members(np.array([0.25, 0.75]), 6)
    [slice(0, 2, None), slice(2, 6, None)]
    """
    ends = np.rint(np.cumsum([0, *shares]) * num_clients).astype(int).tolist()
    ends[-1] = num_clients  # shares that add up to nearly 1 leave nobody out
    return list(map(slice, ends, ends[1:]))


def bounds(value: Number | tuple[Number, Number]) -> tuple[Number, Number]:
    """Return the lowest and the highest value of a range, or of a single number."""
    low, high = value if isinstance(value, (tuple, list)) else (value, value)
    return low, high


_COLUMNS = (
    Column("seconds_per_step"),
    Column("latency", default=0.0),
    Column("upload_rate", default=np.inf),
    Column("download_rate", default=np.inf),
)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast each of M clients is."""

    seconds_per_step: Vector
    latency: Vector  # seconds
    upload_rate: Vector  # bytes per second
    download_rate: Vector

    def check(self, where: str = "the clock") -> None:
        """Refuse what no device has."""
        for name, values in vars(self).items():
            positive = name.endswith("rate")
            good = (values > 0) if positive else ((values >= 0) & np.isfinite(values))
            if not good.all():
                bad = int(np.argmin(good))
                wanted = "above 0 bytes per second" if positive else "a number of seconds from 0 up"
                raise ValueError(f"{where}: {name}={values[bad]:g} of client {bad} must be {wanted}")

    def of(self, clients: IntVector) -> "Pace":
        """Return how fast some of the clients are."""
        return Pace(**{name: values[clients] for name, values in vars(self).items()})

    def waiting(self, download: float, upload: float) -> Vector:
        """Return the seconds in which a client does not compute, (M,)."""
        ways = ((download, self.download_rate), (upload, self.upload_rate))
        # Where nothing limits the rate, no time passes, also if nobody knows how many bytes there are (NaN).
        return self.latency + sum(np.where(np.isinf(rate), 0.0, size / rate) for size, rate in ways)


def read_pace(path: Path) -> list[Pace]:
    """Return how fast clients are in each round of a trace file."""
    wanted = "client, round and seconds_per_step (and upload_rate, download_rate, latency)"
    table = read_trace(path, _COLUMNS, wanted, every_round=False)
    paces = [Pace(**dict(zip(table, rows, strict=True))) for rows in zip(*table.values(), strict=True)]
    for index, pace in enumerate(paces, start=1):
        pace.check(f"trace file {path}, round {index}")
    return paces


SCALAR_BYTES = 4  # of a loss or a norm that a client answers with


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How large messages are, counted from what an algorithm really sends."""

    download: float = 0.0  # bytes that a client gets before it trains
    upload: float = 0.0  # bytes that a client sends back
    model: float = 0.0  # bytes of the model, which a client that is only asked something gets

    def total(self, sent: IntVector, got: IntVector, asked: IntVector, answer_bytes: float) -> tuple[float, float]:
        """Return the bytes up and down of a round, given who uploads, who downloads and who answered a question.

        >>> traffic = Traffic(download=80.0, upload=10.0, model=40.0)
        >>> traffic.total(np.array([1]), np.array([1, 2]), np.array([2, 3]), answer_bytes=8.0)
        (18.0, 200.0)
        """
        num_only_asked = len(np.setdiff1d(asked, got)) if len(asked) else 0  # mostly nobody is asked
        return self.upload * len(sent) + answer_bytes, self.download * len(got) + self.model * num_only_asked


def message_sizes(state: ModelState, num_local: tuple[int, int], aggregator: Aggregator, uploads: Uploads) -> Traffic:
    """Return the sizes of messages: without what stays at the clients or is frozen, with what an algorithm adds.

    ``num_local`` is how many weights and how many buffer values stay at the clients.
    """
    weights, size = len(state.weights) - num_local[0], state.weights.element_size()
    buffer_bytes = float((len(state.buffers) - num_local[1]) * state.buffers.element_size())
    return Traffic(
        download=aggregator.traits.num_downloaded * weights * size + buffer_bytes,
        upload=aggregator.upload_bytes(weights, uploads.num_bytes(weights, size)) + buffer_bytes,
        model=weights * size + buffer_bytes,
    )
