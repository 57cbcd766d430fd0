"""Which examples a client sees in which local step, and the batches made of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.data.federation import TensorFederation, slices
from fl_lightning.engine.evaluation import batch_length
from fl_lightning.engine.hooks import overrides
from fl_lightning.engine.machine import as_it_is
from fl_lightning.engine.model import ClientError, describe, when
from fl_lightning.parts.protocols import Batch, Federation
from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.types import IntVector

_SAMPLE = 8
# Of the examples of several steps that are gathered at once, and then stay in the cache: of a client, of a stack.
_CLIENT_BYTES, _STACK_BYTES = 1 << 20, 4 << 20
_SHORT_ROW = 512  # bytes
_NUMPY_TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


def steps_per_epoch(sizes: IntVector, batch_size: int) -> IntVector:
    """Return how many steps one pass over each client's data takes: ceil(n / B).

    >>> steps_per_epoch(np.array([3, 10, 11]), 5).tolist()
    [1, 2, 3]
    """
    return np.maximum(1, -(-sizes // batch_size))


def batch_indices(seed: int, round_index: int, client: int, size: int, batch_size: int, num_steps: int) -> IntVector:
    """Return the examples of each local step of a client in a round, (T, B) with B = min(batch size, n).

    The data is shuffled anew for each round and each pass; an incomplete last batch is left out. A client with no more
    than a batch of data takes all of it in every step. The order depends on (seed, round, client) alone.

    >>> batch_indices(seed=0, round_index=1, client=3, size=4, batch_size=8, num_steps=2).tolist()
    [[0, 1, 2, 3], [0, 1, 2, 3]]
    >>> sorted(batch_indices(seed=0, round_index=1, client=3, size=6, batch_size=2, num_steps=3).ravel().tolist())
    [0, 1, 2, 3, 4, 5]
    """
    return _shuffled(seed, round_index, np.array([client]), size, batch_size, num_steps)[0]


def _shuffled(seed: int, round_index: int, clients: IntVector, size: int, batch_size: int, num_steps: int) -> IntVector:
    """Return the indices of clients that all have the same size, (n, T, B)."""
    if size <= batch_size:
        return np.broadcast_to(np.arange(size, dtype=np.int64), (len(clients), num_steps, size))
    batches = size // batch_size
    passes = -(-num_steps // batches)
    keys = client_keys(seed, Purpose.BATCHES, round_index, clients, passes * size)
    order = np.argsort(keys.reshape(len(clients), passes, size), axis=2)[:, :, : batches * batch_size]
    return order.reshape(len(clients), -1, batch_size)[:, :num_steps].astype(np.int64, copy=False)


def stacked_indices(
    seed: int, round_index: int, clients: IntVector, sizes: IntVector, batch_size: int, num_steps: int
) -> IntVector:
    """Return :func:`batch_indices` of many clients whose batches have one length, (n, T, B), with few calls.

    Clients of one size are drawn together. ``num_steps`` is the largest T; a client with fewer steps leaves the rest.

    >>> rows = stacked_indices(0, 1, np.array([4, 7]), np.array([6, 9]), batch_size=2, num_steps=5)
    >>> bool((rows[1] == batch_indices(0, 1, 7, 9, 2, 5)).all())
    True
    """
    if (sizes == sizes[0]).all():
        return _shuffled(seed, round_index, clients, int(sizes[0]), batch_size, num_steps)
    length = int(min(batch_size, sizes.min()))
    indices = np.empty((len(clients), num_steps, length), dtype=np.int64)
    order = np.argsort(sizes, kind="stable")
    distinct, begins = np.unique(sizes[order], return_index=True)
    for size, rows in zip(distinct.tolist(), np.split(order, begins[1:]), strict=True):
        indices[rows] = _shuffled(seed, round_index, clients[rows], size, batch_size, num_steps)
    return indices


def _example_bytes(examples: Batch) -> int:
    return sum(leaf[:1].nbytes for leaf in tree_leaves(examples))


def _taken(leaf: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return some rows of a tensor; where they are short, numpy takes them several times faster."""
    short = leaf.device.type == "cpu" and leaf.is_contiguous() and leaf[:1].nbytes <= _SHORT_ROW
    if short and leaf.dtype in _NUMPY_TYPES:
        return torch.from_numpy(leaf.detach().numpy().take(places.numpy(), axis=0))
    return leaf.index_select(0, places.to(leaf.device))


class _OneSet(Protocol):
    """A federation whose clients' data is one set of tensors."""

    train: Batch
    order: IntVector
    offsets: IntVector


class _OwnTensors(Protocol):
    """A federation that has the tensors of each client."""

    def tensors(self, client: int) -> Batch: ...


class ClientBatches:
    """The batches of a federation, on the device and in the layout wanted.

    ``hooked``: whether something else happens to a batch on its way to the device, so that each is moved on its own.
    """

    def __init__(
        self,
        federation: Federation,
        batch_size: int,
        seed: int,
        to_device: Callable[[Batch], Batch],
        hooked: bool = False,
    ) -> None:
        self.federation = federation
        self.batch_size = batch_size
        self.seed = seed
        self.sizes: IntVector = np.asarray(federation.sizes)
        self.lengths: IntVector = np.minimum(self.sizes, batch_size)  # of a batch of each client
        self._to_device = to_device
        self.layout: Callable[[Batch], Batch] = as_it_is
        self._most_together = 0  # examples that are gathered at once, where nothing happens to single batches
        own = overrides(federation, "batch", TensorFederation)
        if isinstance(federation, TensorFederation) and not own and not hooked:
            self._most_together = _CLIENT_BYTES // max(1, _example_bytes(federation.train))
        self._one_set: _OneSet | None = None
        if all(hasattr(federation, name) for name in ("train", "order", "offsets")):
            self._one_set = cast(_OneSet, federation)
        self._kept: Batch | None = None  # all training data, where it stays on the device
        # Whether the data of several clients can be gathered at once.
        self.stackable = hasattr(federation, "tensors") or (
            self._one_set is not None
            and all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(self._one_set.train))
        )

    @property
    def keepable(self) -> Batch | None:
        """The training data that could stay on a device: one set of tensors, of which nothing else is made."""
        return self.federation.train if isinstance(self.federation, TensorFederation) and self._most_together else None

    def keep_on_device(self) -> None:
        """Keep the training data where the model is, so that batches are taken from there."""
        self._kept = self._to_device(self.keepable)

    def of_client(self, client: int, round_index: int, num_steps: int) -> Iterator[Batch]:
        """Yield the batches of a client's local steps; small ones are gathered several at a time."""
        indices = batch_indices(self.seed, round_index, client, int(self.sizes[client]), self.batch_size, num_steps)
        length = indices.shape[1]
        together = max(1, self._most_together // length)
        for first in range(0, num_steps, together):
            some = indices[first : first + together]
            batch = self.placed(self._taken(client, round_index, some.reshape(-1)))
            yield from [batch] if len(some) == 1 else slices(batch, some.size, length)

    def _taken(self, client: int, round_index: int, indices: IntVector) -> Batch:
        if self._kept is None or self._one_set is None:
            return self.fetch(client, round_index, indices)
        places = torch.from_numpy(self._one_set.order[self._one_set.offsets[client] + indices])
        return tree_map(lambda leaf: _taken(leaf, places), self._kept)

    def fetch(self, client: int, round_index: int, indices: IntVector) -> Batch:
        """Return some examples of a client; whatever the data raises becomes a ClientError."""
        try:
            return self.federation.batch(client, indices)
        except Exception as error:
            shown = ", ".join(map(str, indices[:8].tolist())) + (", ..." if len(indices) > 8 else "")
            text = describe(error, f"the data (examples {shown})")
            raise ClientError(f"{when(round_index)}, client {client}: {text}") from error

    @property
    def sample_client(self) -> int:
        """The first client with as many examples as a sample takes, or with most of them."""
        return int(np.argmax(np.minimum(self.sizes, _SAMPLE)))

    def sample(self) -> Batch:
        """Return a few examples of one client, to try a module on."""
        client = self.sample_client
        return self._to_device(self.fetch(client, 0, np.arange(min(_SAMPLE, int(self.sizes[client])))))

    def alike(self, clients: IntVector) -> list[IntVector]:
        """Return groups of positions in ``clients`` whose examples have the same shapes and types."""
        if self._one_set is not None:
            return [np.arange(len(clients))]
        groups: dict[object, list[int]] = {}
        for position, tensors in enumerate(self._own_tensors(clients)):
            leaves = tree_leaves(tensors)
            groups.setdefault(tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves), []).append(position)
        return [np.array(group) for group in groups.values()]

    def examples(self, clients: IntVector) -> Batch:
        """Return the tensors that :meth:`rows` points into: all training data, or that of the clients in a row."""
        if self._one_set is not None:
            return self._one_set.train if self._kept is None else self._kept
        return tree_map(lambda *leaves: torch.cat(leaves), *self._own_tensors(clients))

    def _own_tensors(self, clients: IntVector) -> Iterator[Batch]:
        return map(cast(_OwnTensors, self.federation).tensors, clients.tolist())

    def rows(self, clients: IntVector, round_index: int, num_steps: int) -> torch.Tensor:
        """Return which of the :meth:`examples` each client takes in each step, (T, n, B)."""
        sizes = self.sizes[clients]
        indices = stacked_indices(self.seed, round_index, clients, sizes, self.batch_size, num_steps)
        if self._one_set is None:
            places = (np.cumsum(sizes) - sizes)[:, None, None] + indices
        else:
            places = self._one_set.order.take(self._one_set.offsets[clients][:, None, None] + indices)
        return torch.from_numpy(places).transpose(0, 1)

    def stacked(self, examples: Batch, rows: torch.Tensor) -> Batch:
        """Return the examples ``rows`` (n, B) as one batch with clients along the first dimension."""
        flat = rows.reshape(-1)
        return self._to_device(tree_map(lambda leaf: _taken(leaf, flat).view(*rows.shape, *leaf.shape[1:]), examples))

    def stacked_steps(self, examples: Batch, rows: torch.Tensor, active: Sequence[int]) -> Iterator[Batch]:
        """Yield the batch of each local step, with the clients still at work along the first dimension.

        Small steps are gathered several at a time: calling the operators would cost more than copying. ``active`` says
        how many clients, the first ones, are still at work in each step of ``rows`` (T, n, B).
        """
        together = max(1, _STACK_BYTES // max(1, rows[0].numel() * _example_bytes(examples)))
        for first in range(0, len(rows), together):
            gathered = self.stacked(examples, rows[first : first + together, : active[first]])
            for place, count in enumerate(active[first : first + together]):
                yield tree_map(lambda leaf, place=place, count=count: leaf[place, :count], gathered)

    def placed(self, batch: Batch) -> Batch:
        """Return a batch on the device and in the layout wanted."""
        return self.layout(self._to_device(batch))

    def pieces(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Return a batch of the federation, in pieces where it has more examples than that."""
        length = batch_length(batch)
        return map(self.placed, slices(batch, length, size) if length > size else [batch])

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Return the test data."""
        return map(self.placed, self.federation.test_batches(batch_size))
