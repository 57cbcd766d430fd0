"""Who gets which examples: each class splits labels into one index array for each client."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fl_lightning.data.federation import count_labels
from fl_lightning.output import read_plain
from fl_lightning.parts.bases import Partition
from fl_lightning.seeding import Purpose, generator
from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, Vector

_MAX_DRAWS, _LARGEST = 500, 1_000_000_000  # of a partition; bytes of a file
Assignment = Literal["blocks", "cyclic", "random"]
Sizes = Literal["drawn", "equal"]
Mixing = Literal["class"]


def at_least_one(name: str, value: int) -> int:
    """Return a number that must be an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def _enough(num_examples: int, num_clients: int, wanted: int) -> None:
    if num_examples < wanted:
        raise ValueError(
            f"{num_clients} clients need at least {wanted} examples, the data has {num_examples}: use fewer clients"
        )


def _even(total: int, num_parts: int) -> IntVector:
    """Return the sizes of parts that differ by at most one, the larger ones first.

    >>> _even(8, 3).tolist()
    [3, 3, 2]
    """
    least, more = divmod(total, num_parts)
    return np.full(num_parts, least, dtype=np.int64) + (np.arange(num_parts) < more)


def examples_of(owners: IntVector, num_clients: int) -> list[IntVector]:
    """Return for each client the examples that it owns, ascending; all at once, because there may be a million.

    >>> [part.tolist() for part in examples_of(np.array([2, 0, 2]), 3)]
    [[1], [], [0, 2]]
    """
    ends = np.cumsum(np.bincount(owners, minlength=num_clients))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])


def by_owner(
    owners: npt.ArrayLike, min_size: int = 1, who: str = "client", what: str = "examples"
) -> tuple[npt.NDArray[np.generic], list[IntVector]]:
    """Return who owns examples, in order, and which they own; those who have fewer than some are left out.

    >>> names, parts = by_owner(["b", "a", "b"])
    >>> names.tolist(), [part.tolist() for part in parts]
    (['a', 'b'], [[1], [0, 2]])
    """
    names, places, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    if sizes.max() < min_size:
        raise ValueError(f"no {who} has min_size={min_size} {what}, most: {sizes.max()}")
    parts = [part for part in examples_of(places, len(names)) if len(part) >= min_size]
    return names[sizes >= min_size], parts


def _dealt(examples: IntVector, receivers: IntVector, num_clients: int) -> list[IntVector]:
    """Cut examples, in this order, into even parts, one for each receiver; a client may receive several."""
    owners = np.empty(len(examples), dtype=np.int64)
    owners[examples] = np.repeat(receivers, _even(len(examples), len(receivers)))
    return examples_of(owners, num_clients)


class OneClassPerClient(Partition):
    """Give every client examples of a single class; clients that share a class split it evenly.

    Which clients get which class decides how hard a system is whose first half is slow: with ``blocks`` the slow half
    holds half of the classes alone, with ``cyclic`` each class has slow and fast clients.

    Args:
        num_clients: M, at least the number of classes (else a class would belong to nobody).
        assignment: ``blocks``: class ``m * C // M``; ``cyclic``: class ``m % C``; ``random``: ``blocks`` shuffled.

    >>> labels = np.repeat(np.arange(2), 4)
    >>> [part.tolist() for part in OneClassPerClient(2).split(labels, np.random.default_rng(0))]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """

    def __init__(self, num_clients: int, assignment: Assignment = "blocks") -> None:
        self.num_clients = at_least_one("num_clients", num_clients)
        one_of("assignment", assignment, Assignment)
        self.assignment = assignment

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        classes = np.unique(labels)
        if self.num_clients < len(classes):
            raise ValueError(
                f"one class per client needs at least as many clients as classes, got num_clients={self.num_clients} "
                f"for {len(classes)} classes"
            )
        owners = np.empty(len(labels), dtype=np.int64)
        clients = np.arange(self.num_clients)
        blocks = clients * len(classes) // self.num_clients
        assigned = clients % len(classes) if self.assignment == "cyclic" else blocks
        if self.assignment == "random":
            assigned = rng.permutation(blocks)
        for position, label in enumerate(classes):
            sharing = np.flatnonzero(assigned == position)
            examples = rng.permutation(np.flatnonzero(labels == label))
            _enough(len(examples), len(sharing), len(sharing))
            owners[examples] = np.repeat(sharing, _even(len(examples), len(sharing)))
        return examples_of(owners, self.num_clients)


class Dirichlet(Partition):
    """Draw every client's mix of labels from a Dirichlet distribution, then hand out each example exactly once.

    With ``P[m] ~ Dirichlet(alpha * ones(C))`` client ``m`` gets the share ``P[m, c] / sum_j P[j, c]`` of class ``c``.

    Args:
        num_clients: M.
        alpha: Concentration; small means that a client sees few classes.
        min_size: Fewest examples a client may have; the draw is repeated until all have as many.
        sizes: ``equal``: clients take equally many by their mix, one after another in random order, while classes last.
        by: ``class``: each class is shared out by one draw over the clients, ``P[:, c] ~ Dirichlet(alpha * ones(M))``.
            Below alpha 1 few clients then hold most of a class, and sizes are more unequal.
    """

    def __init__(
        self, num_clients: int, alpha: float, min_size: int = 1, sizes: Sizes = "drawn", by: Mixing | None = None
    ) -> None:
        one_of("sizes", sizes, Sizes)
        if by is not None:
            one_of("by", by, Mixing)
            if sizes == "equal":
                raise ValueError("sizes='equal' and by='class' exclude each other: leave one of them out")
        self.sizes = sizes
        self.by = by
        self.num_clients = at_least_one("num_clients", num_clients)
        self.min_size = at_least_one("min_size", min_size)
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"alpha must be a finite number above 0, got {alpha!r}")
        self.alpha = float(alpha)

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        _enough(len(labels), self.num_clients, self.num_clients * self.min_size)
        classes, class_sizes = np.unique(labels, return_counts=True)
        ends = (self._draw_equal if self.sizes == "equal" else self._draw_until_min)(class_sizes, rng)
        owners = np.empty(len(labels), dtype=np.int64)
        for column, label in enumerate(classes):
            examples = rng.permutation(np.flatnonzero(labels == label))
            owners[examples] = np.repeat(np.arange(self.num_clients), np.diff(ends[:, column], prepend=0))
        return examples_of(owners, self.num_clients)

    def _draw_equal(self, class_sizes: IntVector, rng: np.random.Generator) -> IntVector:
        """Return where each client's share of each class ends, (M, C)."""
        left = class_sizes.astype(np.int64)
        counts = np.zeros((self.num_clients, len(left)), dtype=np.int64)
        sizes = _even(int(left.sum()), self.num_clients)
        for client in rng.permutation(self.num_clients):
            mix = rng.dirichlet(np.full(len(left), self.alpha))
            while missing := int(sizes[client] - counts[client].sum()):
                there = np.where(left > 0, mix + 1e-300, 0.0)
                taken = np.minimum(rng.multinomial(missing, there / there.sum()), left)
                counts[client] += taken
                left -= taken
        return np.cumsum(counts, axis=0)

    def _draw_until_min(self, class_sizes: IntVector, rng: np.random.Generator) -> IntVector:
        """Return where each client's share of each class ends, (M, C)."""
        smallest = 0
        for _ in range(_MAX_DRAWS):
            ends = np.rint(np.cumsum(self._shares(len(class_sizes), rng), axis=0) * class_sizes).astype(np.int64)
            ends[-1] = class_sizes  # rounding of the sum must not lose an example
            sizes = np.diff(ends, axis=0, prepend=0).sum(axis=1)
            smallest = max(smallest, int(sizes.min()))
            if sizes.min() >= self.min_size:
                return ends
        raise ValueError(
            f"in {_MAX_DRAWS} draws no Dirichlet split with alpha={self.alpha} gave each of {self.num_clients} clients "
            f"min_size={self.min_size} examples (best: {smallest}): use fewer clients or a larger alpha"
        )

    def _shares(self, num_classes: int, rng: np.random.Generator) -> Vector:
        """Return which share of each class each client gets; columns sum to 1, (M, C)."""
        if self.by == "class":
            return rng.dirichlet(np.full(self.num_clients, self.alpha), size=num_classes).T
        mix = rng.dirichlet(np.full(num_classes, self.alpha), size=self.num_clients)
        nobody = np.flatnonzero(mix.sum(axis=0) < 1e-300)  # a tiny alpha underflows: one client takes the whole class
        mix[rng.integers(self.num_clients, size=len(nobody)), nobody] = 1.0
        return mix / mix.sum(axis=0)


class Shards(Partition):
    """Sort by label, cut into equal shards and deal ``shards_per_client`` to each client (McMahan et al., 2017).

    Args:
        num_clients: M.
        shards_per_client: Upper bound, in most cases, on the classes a client sees.
    """

    def __init__(self, num_clients: int, shards_per_client: int = 2) -> None:
        self.num_clients = at_least_one("num_clients", num_clients)
        self.shards_per_client = at_least_one("shards_per_client", shards_per_client)

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        num_shards = self.num_clients * self.shards_per_client
        _enough(len(labels), self.num_clients, num_shards)
        shuffled = rng.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        dealt_to = np.empty(num_shards, dtype=np.int64)  # the owner of each shard
        dealt_to[rng.permutation(num_shards)] = np.repeat(np.arange(self.num_clients), self.shards_per_client)
        return _dealt(by_label, dealt_to, self.num_clients)


class IID(Partition):
    """Shuffle and deal evenly.

    >>> [len(part) for part in IID(3).split(np.zeros(8, dtype=np.int64), np.random.default_rng(0))]
    [3, 3, 2]
    """

    uses_labels = False

    def __init__(self, num_clients: int) -> None:
        self.num_clients = at_least_one("num_clients", num_clients)

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        _enough(len(labels), self.num_clients, self.num_clients)
        return _dealt(rng.permutation(len(labels)), np.arange(self.num_clients), self.num_clients)


class GivenIndices(Partition):
    """Use a split made elsewhere.

    Args:
        indices: For each client the list of its examples, or a JSON file that holds such a list of lists.
            An example may belong to several clients or to none.

    >>> GivenIndices([[2, 0], [1]]).split(np.zeros(3, dtype=np.int64), np.random.default_rng(0))
    [array([2, 0]), array([1])]
    """

    uses_labels = False

    def __init__(self, indices: str | Sequence[Sequence[int]]) -> None:
        name = indices if isinstance(indices, str) else "indices"
        lists = _read_json(Path(indices)) if isinstance(indices, str) else indices
        if not isinstance(lists, Sequence) or not lists:
            raise ValueError(f"{name} must be a list with one list of example numbers for each client, got {lists!r}")
        self._parts = [_example_numbers(name, client, values) for client, values in enumerate(lists)]

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Return the given indices."""
        for client, part in enumerate(self._parts):
            if part.max() >= len(labels):
                raise ValueError(
                    f"client {client} is given example {part.max()}, but the data has {len(labels)} training examples"
                )
        return [part.copy() for part in self._parts]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_plain(path, _LARGEST))
    except FileNotFoundError:
        raise FileNotFoundError(f"no file {path} with the clients' example numbers (a JSON list of lists)") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON list of lists of example numbers: {error}") from None


def _example_numbers(name: str, client: int, values: object) -> IntVector:
    part = np.empty(0)
    with suppress(ValueError):  # lists of unequal length
        part = np.asarray(values)
    if part.ndim != 1 or len(part) == 0 or part.dtype.kind not in "iu" or part.min() < 0:
        raise ValueError(
            f"{name}: client {client} needs a non-empty list of example numbers (0 or more), got {values!r}"
        )
    return part.astype(np.int64)


@runtime_checkable
class _KnownClasses(Protocol):
    partition: Partition
    class_sizes: tuple[int, ...]  # training examples of each class


@runtime_checkable
class _KnownSizes(Protocol):
    client_sizes: IntVector


def expected_sizes(data: object, seed: int) -> tuple[IntVector | None, IntVector | None]:
    """Return each client's number of examples under a seed, (M,), and of each class, (M, C), without loading anything.

    A partition is asked twice, with the labels in two orders. What comes out the same does not depend on the order, so
    it is what the real data gives; the rest is None.

    >>> from fl_lightning.data import Quadratic
    >>> expected_sizes(Quadratic(num_clients=3), seed=0)
    (array([1, 1, 1]), None)
    """
    if not isinstance(data, _KnownClasses):
        return (data.client_sizes if isinstance(data, _KnownSizes) else None), None
    ascending = np.repeat(np.arange(len(data.class_sizes)), data.class_sizes)
    first, second = (_label_counts(data.partition, labels, seed) for labels in (ascending, ascending[::-1].copy()))
    if not np.array_equal(first.sum(axis=1), second.sum(axis=1)):
        return None, None
    return first.sum(axis=1), first if np.array_equal(first, second) else None


def _label_counts(partition: Partition, labels: IntVector, seed: int) -> IntVector:
    parts = partition.split(labels, generator(seed, Purpose.PARTITION))
    sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    return count_labels(sizes, labels[np.concatenate(parts)], int(labels.max()) + 1)
