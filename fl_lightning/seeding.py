"""Every random stream is a function of (seed, purpose, round) or (seed, purpose, round, client).

No stream depends on what was drawn before it. So all algorithms meet the same conditions under the same seed, a
resumed run needs no replay, and neither the order in which clients are trained nor the number of processes changes a
result.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """What a stream is for; the numbers are part of every stored result, so they never change."""

    PARTITION = 1
    CONDITIONS = 2
    SAMPLING = 3
    LINK = 4
    BATCHES = 5
    MODULE = 6  # dropout and whatever else a module draws while training
    INITIAL_WEIGHTS = 7
    DATA = 8
    FORECAST = 9
    CLOCK = 20
    AVAILABILITY = 21
    COMPRESSION = 22
    ARRIVALS = 23
    HELD_OUT = 24
    PRIVACY_NOISE = 30
    CHANNEL_NOISE = 31
    ATTACK = 32
    VALIDATION = 40  # which training examples are held out
    TRACE = 50  # which recorded devices clients are


def generator(seed: int, purpose: Purpose, round_index: int = 0) -> np.random.Generator:
    """Return the stream of a purpose in a round.

    >>> a = generator(0, Purpose.LINK, 3).random()
    >>> a == generator(0, Purpose.LINK, 3).random(), a == generator(0, Purpose.SAMPLING, 3).random()
    (True, False)
    """
    return np.random.default_rng([seed, int(purpose), round_index])


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection on 64-bit words whose output bits all depend on all input bits."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


def client_keys(
    seed: int, purpose: Purpose, round_index: int, clients: npt.ArrayLike, size: int
) -> npt.NDArray[np.uint64]:
    """Return ``size`` random 64-bit words for each client, shape ``(len(clients), size)``, for all clients at once.

    A generator object for each client would cost more than training a small one.

    >>> keys = client_keys(0, Purpose.BATCHES, 1, [4, 7], 3)
    >>> bool((keys[1] == client_keys(0, Purpose.BATCHES, 1, [7], 3)).all())
    True
    """
    with np.errstate(over="ignore"):
        key = _mix(np.asarray([seed], dtype=np.int64).astype(np.uint64) + _GOLDEN)
        for part in (int(purpose), round_index):
            key = _mix(key ^ _mix(np.asarray([part], dtype=np.uint64) + _GOLDEN))
        rows = _mix(key ^ _mix(np.asarray(clients, dtype=np.uint64) + _GOLDEN))
        return _mix(rows[:, None] + _GOLDEN * np.arange(1, size + 1, dtype=np.uint64))


def client_seed(seed: int, purpose: Purpose, round_index: int, client: int) -> int:
    """Return one non-negative 63-bit seed for a client in a round."""
    return int(client_keys(seed, purpose, round_index, [client], 1)[0, 0] >> np.uint64(1))


def forecast_round(index: int) -> int:
    """Return the number of a round that is never played.

    Its random streams are those of no real round of the run; what a run draws once, under round 0, stays as it is.

    >>> forecast_round(1) - forecast_round(0)
    1
    """
    return (int(Purpose.FORECAST) << 32) + index
