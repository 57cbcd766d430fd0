"""Finding the labels of a data set, or any other column of it, and one client for each value of a column."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset, TensorDataset

from fl_lightning.parts.bases import Partition
from fl_lightning.types import IntVector

Indexed: TypeAlias = Any  # a data set with ``__len__`` and ``__getitem__``: of torch, of Hugging Face, or a list
Values: TypeAlias = npt.NDArray[np.generic]  # one for each example
# A key of the examples (or a position, where they are tuples), a function of an example, or the values themselves.
Column: TypeAlias = str | int | Callable[[Any], Any] | Sequence[Any]
_LABELS = ("label", "labels", "target", "targets")


def column_values(dataset: Indexed, column: Column) -> Values:
    """Return one value for each example of a data set.

    Args:
        dataset: With ``__len__`` and ``__getitem__``.
        column: A key of the examples or a position in them, a function of an example, or the values themselves.

    Raises:
        ValueError: If there is no such column, or it has another length.
    """
    if callable(column):
        return np.asarray([_plain(column(dataset[index])) for index in range(len(dataset))])
    if isinstance(column, str | int):
        found = _named(dataset, column)
        if found is None:
            raise ValueError(f"no column {column!r} in a {type(dataset).__name__}: {_described(dataset)}")
        return found
    values = np.asarray(column)
    if values.shape != (len(dataset),):
        raise ValueError(f"got values of shape {values.shape}, but the data set has {len(dataset)} examples")
    return values


def find_labels(dataset: Indexed, given: Column | None = None) -> IntVector | None:
    """Return the label of each example as an integer; None where the data set has none that is recognised.

    Recognised are columns, attributes and keys called ``label``, ``labels``, ``target`` or ``targets``, and the second
    entry of examples that are tuples, if they hold one whole number or string for each example.

    Args:
        dataset: With ``__len__`` and ``__getitem__``.
        given: Where the labels are, if not there.

    >>> find_labels([{"text": "a", "label": "no"}, {"text": "b", "label": "yes"}])
    array([0, 1])
    >>> find_labels([{"text": "a"}, {"text": "b"}], given=lambda example: example["text"] == "a")
    array([1, 0])
    """
    values = _recognised(dataset) if given is None else column_values(dataset, given)
    if values is None:
        return None
    if not _are_labels(values):
        raise ValueError(f"labels must be one whole number or string per example, got {values.dtype}: group them first")
    return values.astype(np.int64) if values.dtype.kind in "iu" else np.unique(values, return_inverse=True)[1]


def split_dataset(
    dataset: Indexed, partition: Partition, rng: np.random.Generator, labels: Column | None = None
) -> list[IntVector]:
    """Return for each client the indices of its examples in a data set.

    Args:
        dataset: With ``__len__`` and ``__getitem__``.
        partition: How it is split.
        rng: Where the partition draws from.
        labels: Where the labels are, if :func:`find_labels` would not find them.

    Raises:
        ValueError: If the partition needs labels and there are none, or needs none and they are given.
    """
    by_column, uses_labels = hasattr(partition, "split_dataset"), getattr(partition, "uses_labels", True)
    if labels is not None and (by_column or not uses_labels):
        raise ValueError(f"{type(partition).__name__} looks at no labels: leave labels= out, or split by Dirichlet")
    if by_column:
        parts: list[IntVector] = partition.split_dataset(dataset, rng)  # type: ignore[attr-defined]
        return parts
    found = find_labels(dataset, labels) if uses_labels else np.zeros(len(dataset), dtype=np.int64)
    if found is None:
        raise ValueError(
            f"{type(partition).__name__} splits by label, but a {type(dataset).__name__} has none that is recognised: "
            f"{_described(dataset)}; give labels= a key, a function of an example or an array, or split by IID"
        )
    return partition.split(found, rng)


def _recognised(dataset: Indexed) -> Values | None:
    if isinstance(dataset, Subset):
        whole = _recognised(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    example = dataset[0]
    is_pair = isinstance(example, tuple | list) and len(example) > 1 and _is_label(example[1])
    for name in _LABELS:
        values = _attribute(dataset, name)
        if values is not None and _are_labels(values):
            return values
        if isinstance(example, Mapping) and name in example and _is_label(example[name]):
            return _named(dataset, name)
    return _named(dataset, 1) if is_pair else None


def _named(dataset: Indexed, key: str | int) -> Values | None:
    """Return a column by its name or position; as a whole where the data set can, else example by example."""
    if isinstance(dataset, Subset):
        whole = _named(dataset.dataset, key)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(key, int) and isinstance(dataset, TensorDataset) and key < len(dataset.tensors):
        return dataset.tensors[key].numpy()
    if key in (getattr(dataset, "column_names", None) or ()):  # of Hugging Face: the column without its format
        return np.asarray([_plain(value) for value in dataset.with_format(None)[key]])
    example = dataset[0]
    is_there = key in example if isinstance(example, Mapping) else isinstance(key, int) and key < len(example)
    if is_there:
        return np.asarray([_plain(dataset[index][key]) for index in range(len(dataset))])
    return _attribute(dataset, key) if isinstance(key, str) else None


def _attribute(dataset: Indexed, name: str) -> Values | None:
    """Return an attribute that has one value for each example, as ``targets`` of torchvision."""
    try:
        values = np.asarray(getattr(dataset, name, None))
    except ValueError:  # lists of unequal length
        return None
    return values if values.shape == (len(dataset),) else None


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value


def _is_label(value: Any) -> bool:
    return isinstance(value, str) or (np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biu")


def _are_labels(values: Values) -> bool:
    return values.ndim == 1 and (values.dtype.kind in "biuUS" or all(isinstance(value, str) for value in values))


def _described(dataset: Indexed) -> str:
    example = dataset[0]
    if isinstance(example, Mapping):
        return f"its examples have the keys {', '.join(map(repr, example))}"
    kinds = ", ".join(type(part).__name__ for part in example) if isinstance(example, tuple | list) else ""
    return f"its examples are a {type(example).__name__}" + (f" of {kinds}" if kinds else "")


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

    def split_dataset(self, dataset: Indexed, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        _, owners, sizes = np.unique(column_values(dataset, self.column), return_inverse=True, return_counts=True)
        order = np.argsort(owners, kind="stable")
        parts = [part for part in np.split(order, np.cumsum(sizes)[:-1]) if len(part) >= self.min_size]
        if not parts:
            raise ValueError(f"no value of {self.column!r} has min_size={self.min_size} examples, most: {sizes.max()}")
        return parts
