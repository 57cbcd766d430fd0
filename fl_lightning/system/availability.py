"""Who can be drawn at all: a schedule of its own, the same for every algorithm under one seed."""

from functools import lru_cache

import numpy as np
from typing_extensions import override

from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.system.pace import normal
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


class Hourly:
    r"""Clients that are there with a probability that depends on the hour.

    Where nobody is there, the server waits until somebody is: rounds are those in which at least one client is there,

    .. math:: P(I_m = 1) = \frac{a_m}{1 - \prod_j (1 - a_j)}
    """

    period: int  # P, rounds of a day

    def hours(self, num_clients: int, seed: int) -> Vector:
        """Return the probability that each client is there in each round of a day, before anybody waits, (P, M)."""
        raise NotImplementedError

    def rates(self, num_clients: int, seed: int) -> Vector:
        """Return in which share of the rounds each client can be drawn, (M,)."""
        return np.mean([given_somebody(each) for each in self.hours(num_clients, seed)], axis=0, dtype=np.float64)

    def __call__(self, num_clients: int, round_index: int, seed: int) -> BoolVector:
        """Return who is there, somebody at least."""
        chances = self.hours(num_clients, seed)[round_index % self.period]
        drawn = uniforms(seed, Purpose.AVAILABILITY, round_index, num_clients, 2)
        return _somebody(drawn[:, 0] < chances, drawn[:, 1], chances)


class DayNight(Hourly):
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

    @override
    def hours(self, num_clients: int, seed: int) -> Vector:
        phases = np.arange(num_clients) * self.zones // num_clients / self.zones
        return self.mean + self.swing * np.sin(2 * np.pi * (_clock_hours(self.period) + phases))


class Phones(Hourly):
    r"""Clients as phones are: rarely there, some of them hardly ever, and mostly at night. Synthetic, for any M.

    .. math::
        a_m(t) = \min\bigl(1, \bar a_m f(t - \phi_m)\bigr), \qquad
        \bar a_m = F^{-1}\Bigl(\frac{\pi_m + u_m}{M}\Bigr), \qquad f(t) \propto e^{\kappa \cos(2 \pi t / P)}

    with F a Beta distribution, :math:`\pi` the clients in random order and :math:`\phi` their nights, spread around
    hour 4. The defaults are fitted to 710 phones that recorded when they were charging, idle and on WiFi (FLASH, as
    published by FLHetBench): half of them were ready in less than 5.5 % of the time, a tenth in more than 25 %. Whether
    a phone is there is independent from round to round given the hour: half of the recorded stays are shorter than
    three minutes.

    Args:
        shape: The two parameters of F.
        least: Nobody is there less often, on average; who is never ready is no client.
        concentration: kappa; 0: at all hours alike.
        spread: Standard deviation of the nights, in hours of 24.
        period: P, rounds of a day.
    """

    def __init__(
        self,
        shape: tuple[float, float] = (0.55, 5.1),
        least: float = 0.001,
        concentration: float = 1.3,
        spread: float = 5.5,
        period: int = 24,
    ) -> None:
        if not (min(shape) > 0 and 0 < least < 1 and concentration >= 0 and spread >= 0 and period >= 1):
            raise ValueError(
                f"shape={shape} must be positive, least={least} in (0, 1), concentration={concentration} and "
                f"spread={spread} at least 0, and period={period} at least 1"
            )
        self.shape, self.least = (shape[0], shape[1]), least
        self.concentration, self.spread = concentration, spread
        self.period = period

    @override
    def hours(self, num_clients: int, seed: int) -> Vector:
        return _phone_hours(num_clients, seed, self.shape, (self.least, self.concentration, self.spread), self.period)


@lru_cache(maxsize=8)
def _phone_hours(
    num_clients: int, seed: int, shape: tuple[float, float], settings: tuple[float, float, float], period: int
) -> Vector:
    from scipy.special import betaincinv

    least, concentration, spread = settings
    drawn = uniforms(seed, Purpose.AVAILABILITY, 0, num_clients, 3)
    places = np.argsort(np.argsort(drawn[:, 0])) + drawn[:, 1]  # one client in each of M equal parts
    mean = np.maximum(betaincinv(*shape, places / num_clients), least)
    nights = (4 + spread * normal(drawn[:, 2])) / 24
    profile = np.exp(concentration * np.cos(2 * np.pi * (_clock_hours(period) - nights)))
    return np.asarray(np.minimum(mean * profile / profile.mean(axis=0), 1.0))


class OnOff(Hourly):
    """Each client is there for a while and away for a while: a Markov chain of two states.

    Args:
        mean_on: Mean number of rounds that a client stays.
        mean_off: Mean number of rounds that it is away; one for each client where they differ.
    """

    period = 1
    _BLOCK = 32  # rounds after which a chain starts anew from its long-run probability, so that no replay is needed

    def __init__(self, mean_on: float = 10.0, mean_off: float | list[float] = 5.0) -> None:
        if not mean_on >= 1 or not (np.asarray(mean_off) >= 1).all():
            raise ValueError(f"mean_on={mean_on} and mean_off={mean_off} must be at least 1 round")
        self.mean_on, self.mean_off = mean_on, mean_off

    @override
    def hours(self, num_clients: int, seed: int) -> Vector:
        away = np.asarray(self.mean_off, dtype=np.float64)
        if away.ndim and len(away) != num_clients:
            raise ValueError(f"mean_off has {len(away)} values, but there are {num_clients} clients: give one for each")
        return self.mean_on / (self.mean_on + np.broadcast_to(away, (1, num_clients)))

    @override
    def __call__(self, num_clients: int, round_index: int, seed: int) -> BoolVector:
        steady = self.hours(num_clients, seed)[0]
        begin = round_index - round_index % self._BLOCK
        there = uniforms(seed, Purpose.AVAILABILITY, begin, num_clients)[:, 0] < steady
        for index in range(begin + 1, round_index + 1):
            drawn = uniforms(seed, Purpose.AVAILABILITY, index, num_clients)[:, 0]
            there = np.where(there, drawn >= 1 / self.mean_on, drawn < 1 / np.asarray(self.mean_off))
        spare = uniforms(seed, Purpose.AVAILABILITY, round_index, num_clients, 2)[:, 1]
        return _somebody(there, spare, steady)


class AvailabilityTrace:
    """Who is there as it was recorded; what the server waits for in between, nobody, is left out.

    Args:
        path: A CSV or JSON file with columns ``client`` (from 0), ``round`` (from 1; after the last round it starts
            again) and ``available`` (1 or 0, true or false).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        recorded = read_flags(path, "available")
        self.available = recorded[recorded.any(axis=1)]
        if not len(self.available):
            raise ValueError(f"trace file {path} has nobody available in any round: a round needs at least one client")

    def hours(self, num_clients: int, seed: int) -> Vector:
        """Return who is there in each recorded round, (P, M)."""
        if self.available.shape[1] != num_clients:
            raise ValueError(f"{self.path} has {self.available.shape[1]} clients, but there are {num_clients}")
        return self.available.astype(np.float64)

    def rates(self, num_clients: int, seed: int) -> Vector:
        """Return in which share of the rounds each client can be drawn, (M,)."""
        return self.hours(num_clients, seed).mean(axis=0)

    def __call__(self, num_clients: int, round_index: int, seed: int) -> BoolVector:
        """Return who is there."""
        return self.hours(num_clients, seed)[(round_index - 1) % len(self.available)] > 0


def given_somebody(chances: Vector) -> Vector:
    """Return the probability of each client to be there, given that somebody is, (M,).

    >>> given_somebody(np.array([0.5, 0.0])).tolist()
    [1.0, 0.0]
    """
    total = -np.expm1(np.log1p(-np.minimum(chances, 1 - 1e-15)).sum())
    return chances / total if total > 0 else np.full(len(chances), 1 / len(chances))


def _somebody(there: BoolVector, spare: Vector, chances: Vector) -> BoolVector:
    """Return who is there; where nobody is, a draw given that somebody is, which leaves the probabilities as stated."""
    if there.any():
        return there
    first_comes = 1 - np.cumprod(1 - chances)  # somebody up to this client
    if not first_comes[-1] > 0:
        return np.arange(len(chances)) == int(spare[0] * len(chances))
    first = int(np.searchsorted(first_comes, spare[0] * first_comes[-1], side="right"))
    later = np.arange(len(chances)) > first
    return (later & (spare < chances)) | (np.arange(len(chances)) == first)


def _clock_hours(period: int) -> Vector:
    """Return the time of each round of a day as a share of it, (P, 1)."""
    return np.arange(period)[:, None] / period
