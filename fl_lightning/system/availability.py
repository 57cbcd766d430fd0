"""Who can be drawn at all: a schedule of its own, the same for every algorithm under one seed."""

import numpy as np

from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.system.traces import read_flags
from fl_lightning.types import BoolVector, IntVector, Vector


def uniforms(seed: int, purpose: Purpose, round_index: int, clients: int | IntVector, size: int = 1) -> Vector:
    """Return numbers in [0, 1) that are a function of (seed, purpose, round, client), (n, size).

    ``clients`` is how many there are, or which of them are wanted.

    >>> uniforms(0, Purpose.AVAILABILITY, 1, 3).shape
    (3, 1)
    """
    who = np.arange(clients) if isinstance(clients, int) else clients
    keys = client_keys(seed, purpose, round_index, who, size)
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


class DayNight:
    r"""Clients are there by day more often than by night.

    .. math:: a_m(t) = \bar a + h \sin(2 \pi (t / P + \phi_m))

    Args:
        mean: Long-run probability of being there.
        swing: h; the probability goes from ``mean - swing`` to ``mean + swing``, both in [0, 1].
        period: P, rounds of a day.
        zones: Number of time zones; clients are dealt out to them in the order of their numbers.
    """

    def __init__(self, mean: float = 0.5, swing: float = 0.4, period: int = 24, zones: int = 2) -> None:
        if not (swing >= 0 and mean - swing >= 0 and mean + swing <= 1 and mean > 0):
            raise ValueError(f"mean={mean} and swing={swing} must keep the probability between 0 and 1")
        if period < 1 or zones < 1:
            raise ValueError(f"period={period} and zones={zones} must be at least 1")
        self.mean, self.swing = mean, swing
        self.period, self.zones = period, zones

    def rates(self, num_clients: int) -> Vector:
        """Return in which share of the rounds each client can be drawn, (M,)."""
        hours = [self.probabilities(num_clients, hour) for hour in range(self.period)]
        return np.mean([each + _waited_for(each) for each in hours], axis=0, dtype=np.float64)

    def probabilities(self, num_clients: int, round_index: int) -> Vector:
        """Return the probability that each client is there, (M,)."""
        phases = np.arange(num_clients) * self.zones // num_clients / self.zones
        return self.mean + self.swing * np.sin(2 * np.pi * (round_index % self.period / self.period + phases))

    def __call__(self, num_clients: int, round_index: int, seed: int) -> BoolVector:
        """Return who is there; where nobody is, the server waits for the likeliest client."""
        probabilities = self.probabilities(num_clients, round_index)
        drawn = uniforms(seed, Purpose.AVAILABILITY, round_index, num_clients)[:, 0]
        return _at_least_one(drawn < probabilities, probabilities - drawn)


class OnOff:
    """Each client is there for a while and away for a while: a Markov chain of two states.

    Args:
        mean_on: Mean number of rounds that a client stays.
        mean_off: Mean number of rounds that it is away; one for each client where they differ.
    """

    _BLOCK = 32  # rounds after which a chain starts anew from its long-run probability, so that no replay is needed

    def __init__(self, mean_on: float = 10.0, mean_off: float | list[float] = 5.0) -> None:
        if not mean_on >= 1 or not (np.asarray(mean_off) >= 1).all():
            raise ValueError(f"mean_on={mean_on} and mean_off={mean_off} must be at least 1 round")
        self.mean_on, self.mean_off = mean_on, mean_off

    def _steady(self, num_clients: int) -> Vector:
        away = np.asarray(self.mean_off, dtype=np.float64)
        if away.ndim and len(away) != num_clients:
            raise ValueError(f"mean_off has {len(away)} values, but there are {num_clients} clients: give one for each")
        return self.mean_on / (self.mean_on + np.broadcast_to(away, num_clients))

    def rates(self, num_clients: int) -> Vector:
        """Return in which share of the rounds each client can be drawn, (M,)."""
        steady = self._steady(num_clients)
        steady[int(np.argmax(steady))] += np.prod(1 - steady)  # it is waited for where nobody is there
        return steady

    def __call__(self, num_clients: int, round_index: int, seed: int) -> BoolVector:
        """Return who is there; where nobody is, the server waits for the one that is there most."""
        steady = self._steady(num_clients)
        begin = round_index - round_index % self._BLOCK
        there = uniforms(seed, Purpose.AVAILABILITY, begin, num_clients)[:, 0] < steady
        for index in range(begin + 1, round_index + 1):
            drawn = uniforms(seed, Purpose.AVAILABILITY, index, num_clients)[:, 0]
            there = np.where(there, drawn >= 1 / self.mean_on, drawn < 1 / np.asarray(self.mean_off))
        return _at_least_one(there, steady)


class AvailabilityTrace:
    """Who is there as it was recorded.

    Args:
        path: A CSV or JSON file with columns ``client`` (from 0), ``round`` (from 1; after the last round it starts
            again) and ``available`` (1 or 0, true or false).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.available = read_flags(path, "available")
        empty = np.flatnonzero(~self.available.any(axis=1)) + 1
        if len(empty):
            raise ValueError(
                f"trace file {path} has nobody available in round {empty[0]}: a round needs at least one client"
            )

    def rates(self, num_clients: int) -> Vector:
        """Return in which share of the rounds each client can be drawn, (M,)."""
        return self.available.mean(axis=0, dtype=np.float64)

    def __call__(self, num_clients: int, round_index: int, seed: int) -> BoolVector:
        """Return who is there."""
        if self.available.shape[1] != num_clients:
            raise ValueError(f"{self.path} has {self.available.shape[1]} clients, but there are {num_clients}")
        return self.available[(round_index - 1) % len(self.available)]


def _at_least_one(there: BoolVector, liking: Vector) -> BoolVector:
    if not there.any():
        there = there.copy()
        there[int(np.argmax(liking))] = True
    return there


def _waited_for(probabilities: Vector) -> Vector:
    r"""Return the probability that nobody is there and a client comes first, (M,).

    .. math:: \int_0^b \prod_{j \ne m} (1 - a_j - x)\, dx, \qquad b = \min_j (1 - a_j)

    >>> _waited_for(np.array([0.5, 0.0])).round(6).tolist()
    [0.375, 0.125]
    """
    away = 1 - probabilities
    if np.log(np.maximum(away, 1e-300)).sum() < np.log(1e-9):
        return np.zeros(len(away))
    nodes, shares = np.polynomial.legendre.leggauss(32)
    width = 0.5 * float(away.min())
    left = away - width * (nodes[:, None] + 1)  # (nodes, M), positive
    return np.asarray(width * shares @ (left.prod(axis=1, keepdims=True) / left), dtype=np.float64)
