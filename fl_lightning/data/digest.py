"""A hash of all that clients hold, to tell whether two federations are the same."""

import hashlib
from collections.abc import Iterable
from itertools import chain

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fl_lightning.parts.protocols import Federation

_DIGITS = 1000  # floats count up to this part of 1: other processors round the last digits differently
_MOST = 200  # examples of a client that are looked at


def digest(federation: Federation) -> str:
    """Return the sha256 of all sizes, of the first examples of each client and of the test set.

    >>> from fl_lightning.data import QuadraticFederation
    >>> digest(QuadraticFederation(np.eye(2))) == digest(QuadraticFederation(np.eye(2) * 2))
    False
    """
    counts = [np.arange(min(int(size), _MOST)) for size in federation.sizes]
    own = (federation.batch(client, rows) for client, rows in enumerate(counts))
    return hash_of(chain([federation.sizes], own, federation.test_batches(_MOST)))


def hash_of(values: Iterable[object]) -> str:
    """Return the sha256 of arrays and tensors, alone or in batches; floats count up to the third digit.

    >>> hash_of([np.array([0.1])]) == hash_of([np.array([0.1 + 1e-9])])
    True
    """
    found = hashlib.sha256()
    for leaf in chain.from_iterable(map(tree_leaves, values)):
        given = torch.as_tensor(leaf)
        rounded = given.double().mul(_DIGITS).round() if given.is_floating_point() else given
        found.update(rounded.to(torch.int64).contiguous().numpy().tobytes())
    return found.hexdigest()
