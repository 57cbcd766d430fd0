"""How many examples each client will have, without the data: most splits depend on the sizes of the classes alone."""

from typing import Any

import numpy as np

from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector


def expected_sizes(data: Any, seed: int) -> tuple[IntVector | None, IntVector | None]:
    """Return each client's number of examples under a seed, (M,), and of each class, (M, C), without loading anything.

    A partition is asked twice, with the labels in two orders. What comes out the same does not depend on the order, so
    it is what the real data gives; the rest is None.

    Args:
        data: A data source; with ``partition`` and ``class_sizes`` (the number of training examples of each class), or
            with ``num_clients`` where each client has one example.
        seed: Of the run.

    >>> from fl_lightning.data import Quadratic
    >>> expected_sizes(Quadratic(num_clients=3), seed=0)
    (array([1, 1, 1]), None)
    """
    class_sizes, partition = getattr(data, "class_sizes", None), getattr(data, "partition", None)
    if class_sizes is None or partition is None:
        num_clients = getattr(data, "num_clients", None)
        return (None if num_clients is None else np.ones(num_clients, dtype=np.int64)), None
    ascending = np.repeat(np.arange(len(class_sizes)), class_sizes)
    first, second = (_label_counts(partition, labels, seed) for labels in (ascending, ascending[::-1].copy()))
    if not np.array_equal(first.sum(axis=1), second.sum(axis=1)):
        return None, None
    return first.sum(axis=1), first if np.array_equal(first, second) else None


def _label_counts(partition: Any, labels: IntVector, seed: int) -> IntVector:
    parts = partition.split(labels, generator(seed, Purpose.PARTITION))
    num_classes, sizes = int(labels.max()) + 1, np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    cells = np.repeat(np.arange(len(parts)), sizes) * num_classes + labels[np.concatenate(parts)]
    return np.bincount(cells, minlength=len(parts) * num_classes).reshape(len(parts), num_classes).astype(np.int64)
