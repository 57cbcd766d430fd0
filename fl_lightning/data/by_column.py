"""Clients as they are in the data: one for each value of a column."""

from typing import Any

import numpy as np

from fl_lightning.data.columns import Column, column_values
from fl_lightning.types import IntVector


class ByColumn:
    """Give each client the examples of one value of a column: the data of one user, one hospital, one device.

    Clients are numbered in the order of their values.

    Args:
        column: The key of the value in each example (or its position, where examples are tuples), a function of an
            example, or the values themselves.
        min_size: Leave out clients with fewer examples than this.

    >>> visits = [{"user": "b"}, {"user": "a"}, {"user": "b"}]
    >>> [part.tolist() for part in ByColumn("user").split_dataset(visits, np.random.default_rng(0))]
    [[1], [0, 2]]
    """

    def __init__(self, column: Column, min_size: int = 1) -> None:
        if isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 1:
            raise ValueError(f"min_size must be an integer of at least 1, got {min_size!r}")
        self.column, self.min_size = column, min_size

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Refuse labels: they are another column than the one that is wanted."""
        raise ValueError(
            f"this data has labels but no column {self.column!r}: use ByColumn with FromDataModule or with a data set "
            "of your own"
        )

    def split_dataset(self, dataset: Any, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        _, owners, sizes = np.unique(column_values(dataset, self.column), return_inverse=True, return_counts=True)
        order = np.argsort(owners, kind="stable")
        parts = [part for part in np.split(order, np.cumsum(sizes)[:-1]) if len(part) >= self.min_size]
        if not parts:
            raise ValueError(f"no value of {self.column!r} has min_size={self.min_size} examples, most: {sizes.max()}")
        return parts
