"""Which examples a client sees in which local step."""

import numpy as np

from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.types import IntVector


def steps_per_epoch(sizes: IntVector, batch_size: int) -> IntVector:
    """Return how many steps one pass over each client's data takes: ceil(n / B).

    >>> steps_per_epoch(np.array([3, 10, 11]), 5).tolist()
    [1, 2, 3]
    """
    return np.maximum(1, -(-sizes // batch_size))


def batch_indices(
    seed: int, round_index: int, client: int, size: int, batch_size: int, num_steps: int
) -> IntVector:
    """Return the examples of each local step of a client in a round, (T, B) with B = min(batch size, n).

    The data is shuffled anew for each round and each pass; an incomplete last batch is left out. A client with no more
    than a batch of data takes all of it in every step. The order depends on (seed, round, client) alone, so each algorithm
    under a seed trains a client on the same batches, and a resumed run needs to know nothing about earlier rounds.

    >>> batch_indices(seed=0, round_index=1, client=3, size=4, batch_size=8, num_steps=2).tolist()
    [[0, 1, 2, 3], [0, 1, 2, 3]]
    >>> sorted(batch_indices(seed=0, round_index=1, client=3, size=6, batch_size=2, num_steps=3).ravel().tolist())
    [0, 1, 2, 3, 4, 5]
    """
    if size <= batch_size:
        return np.broadcast_to(np.arange(size, dtype=np.int64), (num_steps, size))
    batches = size // batch_size
    passes = -(-num_steps // batches)
    keys = client_keys(seed, Purpose.BATCHES, round_index, [client], passes * size).reshape(passes, size)
    order = np.argsort(keys, axis=1)[:, : batches * batch_size]
    return order.reshape(-1, batch_size)[:num_steps].astype(np.int64, copy=False)
