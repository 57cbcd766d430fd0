"""Clients' data in memory: one copy of the examples and, for each client, which of them are its own."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, default_collate
from typing_extensions import override

from fl_lightning.parts.protocols import Federation
from fl_lightning.types import IntVector, RoundPlan

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule

_LOG = logging.getLogger("fl_lightning")
Examples: TypeAlias = Any  # a tuple, list or dict of tensors, nested as you like, with examples along dimension 0
AnyDataset: TypeAlias = Dataset[Any]  # its examples are whatever its collate function takes


def num_examples(name: str, examples: Examples) -> int:
    """Return the common leading dimension of a pytree of tensors."""
    leaves = tree_leaves(examples)
    if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.ndim > 0 for leaf in leaves):
        kinds = sorted({type(leaf).__name__ for leaf in leaves})
        raise ValueError(
            f"{name} must be a tuple, list or dict of tensors with examples along dimension 0, got {kinds}"
        )
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) != 1:
        raise ValueError(f"all tensors of {name} must have the same length, got lengths {sorted(lengths)}")
    return int(lengths.pop())


class Sized:
    """What is common to federations: they know how many training examples each client has, at least one.

    Attributes:
        names: Of the clients, where they have some.
        in_time_order: Whether each client's examples are in time order: its last ones are held out then.
    """

    names: Sequence[str] = ()
    in_time_order: bool = False
    test: Any = None
    _num_test: int = 0

    def __init__(self, sizes: npt.ArrayLike) -> None:
        self._sizes: IntVector = np.asarray(sizes, dtype=np.int64)
        if len(self._sizes) == 0:
            raise ValueError("a federation needs at least one client, got none")
        empty = np.flatnonzero(self._sizes == 0)
        if len(empty):
            names = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
            raise ValueError(
                f"{len(empty)} of {len(self._sizes)} clients have no training example ({names}); "
                "every client needs at least one: use fewer clients or another partition"
            )

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self._sizes)

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""
        return self._sizes.copy()

    def check_indices(self, client: int, indices: IntVector) -> None:
        """Refuse indices of examples that a client does not have."""
        size = self._sizes[client]
        if len(indices) and (indices.min() < 0 or indices.max() >= size):
            raise IndexError(f"client {client} has {size} examples, got an index outside 0..{size - 1}")

    def test_batches(self, batch_size: int) -> Iterator[Examples]:
        """Yield the test data in order; the last batch may be smaller."""
        yield from slices(self.test, self._num_test, batch_size)

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return nothing: most data knows no optimum."""
        return {}


def with_examples(sizes: Sequence[int], names: Sequence[str] = ()) -> list[int]:
    """Return which clients have examples; those that have none are left out, and named in one line."""
    if names and len(names) != len(sizes):
        raise ValueError(f"names has {len(names)} entries, but there are {len(sizes)} clients: name each of them")
    kept = [client for client, size in enumerate(sizes) if size]
    if kept and len(kept) < len(sizes):
        empty = [names[client] if names else str(client) for client, size in enumerate(sizes) if not size]
        shown = ", ".join(empty[:10]) + (", ..." if len(empty) > 10 else "")
        _LOG.warning(f"left out {len(empty)} of {len(sizes)} clients, which have no training example: {shown}")
    return kept or list(range(len(sizes)))


def slices(examples: Examples, number: int, batch_size: int) -> Iterator[Examples]:
    """Yield a number of examples in order; the last batch may be smaller."""
    for start in range(0, number, batch_size):
        yield tree_map(lambda tensor, start=start: tensor[start : start + batch_size], examples)


class TensorFederation(Sized):
    """A federation over tensors that all clients share; a batch is one gather.

    Client ``m`` owns the examples ``order[offsets[m]:offsets[m + 1]]``, so that 100,000 clients are two arrays.

    Args:
        train: The training examples: a tuple, list or dict of tensors (nested as you like), examples along dimension 0.
        test: The test examples, in the same structure.
        clients: For each client the indices of its training examples.
        names: What each client is called.
        in_time_order: Whether each client's examples are in time order.

    >>> x, y = torch.arange(6.0), torch.tensor([0, 0, 1, 1, 2, 2])
    >>> federation = TensorFederation((x, y), (x[:2], y[:2]), [[0, 5], [1, 2, 3, 4]])
    >>> federation.sizes
    array([2, 4])
    >>> federation.batch(1, np.array([3, 0]))
    (tensor([4., 1.]), tensor([2, 0]))
    """

    def __init__(
        self,
        train: Examples,
        test: Examples,
        clients: Sequence[npt.ArrayLike],
        names: Sequence[str] = (),
        in_time_order: bool = False,
    ) -> None:
        self.train, self.test = train, test
        self.in_time_order = in_time_order
        total = num_examples("train", train)
        self._num_test = num_examples("test", test)
        parts = [np.asarray(client, dtype=np.int64) for client in clients]
        kept = with_examples([len(part) for part in parts], names)
        parts, self.names = [parts[client] for client in kept], tuple(names[client] for client in kept if names)
        super().__init__(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))
        self.order: IntVector = np.concatenate(parts)
        self.offsets: IntVector = np.concatenate([[0], np.cumsum(self._sizes)])  # (M + 1,)
        if self.order.min() < 0 or self.order.max() >= total:
            raise ValueError(
                f"clients' indices must lie in 0..{total - 1} (there are {total} training examples), "
                f"got {self.order.min()}..{self.order.max()}"
            )

    def batch(self, client: int, indices: IntVector) -> Examples:
        """Return the client's examples ``indices`` in the structure of ``train``."""
        self.check_indices(client, indices)
        rows = torch.from_numpy(self.order[self.offsets[client] + indices])
        return tree_map(lambda tensor: tensor.index_select(0, rows), self.train)


def between_0_and_1(name: str, share: float) -> float:
    """Return a share of something, of which some and not all is wanted."""
    if not 0 < share < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {share!r}")
    return share


def cut_in_time(
    examples: Examples, clients: Sequence[IntVector], test_share: float, names: Sequence[str]
) -> TensorFederation:
    """Return a federation whose clients train on their first examples and are tested, all together, on their last.

    >>> x = torch.arange(8.0)
    >>> federation = cut_in_time((x,), [np.arange(5), np.arange(5, 8)], 0.4, ["a", "b"])
    >>> federation.sizes.tolist(), federation.test[0].tolist()
    ([3, 2], [3.0, 4.0, 7.0])
    """
    kept = [max(1, len(rows) - round(test_share * len(rows))) for rows in clients]
    last = np.concatenate([rows[number:] for rows, number in zip(clients, kept, strict=True)])
    test = tree_map(lambda tensor: tensor.index_select(0, torch.from_numpy(last)), examples)
    first = [rows[:number] for rows, number in zip(clients, kept, strict=True)]
    return TensorFederation(examples, test, first, names, in_time_order=True)


class DatasetFederation(Sized):
    """A federation over ordinary torch data sets, one for each client; a batch is collated example by example.

    Args:
        datasets: For each client its map-style data set; those of Hugging Face are.
        test: The common test data: a data set, or a DataLoader, whose own batches are then used for evaluation; without
            any, nothing is evaluated.
        collate: Makes a batch of a list of examples.
        collate_fn: The same, by the name that a DataLoader has for it.
        names: What each client is called.

    Attributes:
        test_loader: The DataLoader of the test data, where there is one.
        datamodule: The data module that the data is of, where there is one; its hooks of the batch transfer are called.
    """

    datamodule: "LightningDataModule | None" = None

    def __init__(
        self,
        datasets: Sequence[AnyDataset],
        test: AnyDataset | DataLoader[Any] | None = None,
        collate: Callable[[list[Any]], Examples] | None = None,
        collate_fn: Callable[[list[Any]], Examples] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        if collate is not None and collate_fn is not None:
            raise ValueError("collate and collate_fn are the same: give one of them")
        self.test_loader: DataLoader[Any] | None = test if isinstance(test, DataLoader) else None
        self.test: AnyDataset | None = test.dataset if isinstance(test, DataLoader) else test
        self.collate = collate or collate_fn or default_collate
        sizes = [_length(dataset) for dataset in datasets]
        kept = with_examples(sizes, names)
        self.datasets = [datasets[client] for client in kept]
        self.names = tuple(names[client] for client in kept if names)
        super().__init__([sizes[client] for client in kept])
        self._num_test = 0 if self.test_loader is not None or self.test is None else _length(self.test)

    def batch(self, client: int, indices: IntVector) -> Examples:
        """Return the client's examples ``indices``, collated."""
        self.check_indices(client, indices)
        return self.collate(_examples(self.datasets[client], indices.tolist()))

    @override
    def test_batches(self, batch_size: int) -> Iterator[Examples]:
        """Yield the batches of the test loader, else the test data in order; the last batch may be smaller."""
        if self.test_loader is not None:
            yield from self.test_loader
            return
        for start in range(0, self._num_test, batch_size):
            yield self.collate(_examples(self.test, list(range(start, min(start + batch_size, self._num_test)))))


def _examples(dataset: Any, indices: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):  # at once, as a DataLoader does
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


def _length(dataset: AnyDataset) -> int:
    if not hasattr(dataset, "__len__"):
        raise ValueError(f"a client's data set needs __len__ and __getitem__, got {type(dataset).__name__}")
    return len(dataset)


def _labels(examples: Examples) -> IntVector:
    leaves = tree_leaves(examples)
    found = [leaf for leaf in leaves if leaf.ndim == 1 and not leaf.is_floating_point()]
    if not found and len(leaves) == 2 and leaves[1].ndim == 2 and not leaves[1].is_floating_point():
        return leaves[1].numpy().astype(np.int64)  # a label at each place of a sequence
    if len(found) != 1:
        raise ValueError(f"labels are the one vector of integers in a batch, got {len(found)} such vectors")
    return found[0].numpy().astype(np.int64)


def count_labels(sizes: IntVector, labels: IntVector, num_classes: int) -> IntVector:
    """Count the labels of all clients, one client's after the other's, shape (M, num_classes)."""
    cells = np.repeat(np.arange(len(sizes)), sizes) * num_classes + labels
    counts = np.bincount(cells, minlength=len(sizes) * num_classes)
    return counts.reshape(len(sizes), num_classes).astype(np.int64)


def label_counts(federation: TensorFederation | DatasetFederation, num_classes: int) -> IntVector:
    """Count the labels of each client's training examples, shape (M, num_classes); of sequences, at all their places.

    >>> x, y = torch.zeros(4), torch.tensor([0, 0, 1, 2])
    >>> label_counts(TensorFederation((x, y), (x, y), [[0, 2], [1, 3]]), 3)
    array([[1, 1, 0],
           [1, 0, 1]])
    """
    labels = _all_labels(federation)
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels must lie in 0..{num_classes - 1}, got {labels.min()}..{labels.max()}")
    return count_labels(federation.sizes * labels[0].size, labels.reshape(-1), num_classes)


def reported_labels(federation: Federation) -> IntVector:
    """Return what clients answer who are asked how many training examples of each class they have, (M, C).

    Raises:
        ValueError: Where the data has no classes.
    """
    try:
        labels = _all_labels(federation)
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"the sampler asks clients how many examples of each class they have, but there are no classes ({error}): "
            "use a sampler that does not, such as HeterogeneityAware"
        ) from None
    lowest = int(labels.min())
    places = (labels - lowest).reshape(-1)  # a text has a label behind each letter
    return count_labels(federation.sizes * labels[0].size, places, int(labels.max()) - lowest + 1)


def _all_labels(federation: Federation) -> IntVector:
    """Return the labels of all clients, one client's after the other's."""
    if isinstance(federation, TensorFederation):
        return _labels(federation.train)[federation.order]
    return np.concatenate([_labels(federation.batch(m, np.arange(size))) for m, size in enumerate(federation.sizes)])
