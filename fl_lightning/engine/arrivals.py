"""Who was heard of those who were asked, where only training itself can tell."""

import numpy as np

from fl_lightning.types import IntVector, Updates


def without_absent(delivered: IntVector, asked: IntVector, updates: Updates) -> IntVector:
    """Return how many of each client's draws arrived, none of a client that was asked and sent nothing, (M,).

    Where the clients are simulated, all who are asked answer, and nothing changes.

    >>> import torch
    >>> none, one = torch.empty(1, 0), np.array([2])
    >>> updates = Updates(clients=one, deltas=none, buffers=none, num_steps=one, losses=np.zeros(1))
    >>> without_absent(np.array([0, 1, 3]), np.array([1, 2]), updates).tolist()
    [0, 0, 3]
    """
    if np.array_equal(asked, updates.clients):
        return delivered
    absent = np.setdiff1d(asked, updates.clients)
    if not len(absent):
        return delivered
    heard = delivered.copy()
    heard[absent] = 0
    return heard
