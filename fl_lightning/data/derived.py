"""Clients' data that is changed after it was loaded: a share of it held out from training, or labels made wrong."""

import copy
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import ConcatDataset, Dataset, Subset

from fl_lightning.data.federation import DatasetFederation, Examples, TensorFederation
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Federation
from fl_lightning.parts.traits import traits_of_federation
from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.types import IntVector
from fl_lightning.uploads.attacks import attackers

_FEWEST = 5  # held-out examples; with fewer an accuracy says nothing
_WHOLE = ("train", "order", "offsets", "tensors")  # through which what is held out could be seen


class HeldOut:
    """A federation whose clients train on what is left after a share of their data was held out.

    Which examples are held out is a function of (seed, client); of data in time order, the last ones are. A client
    with too little data trains on all of it, and is evaluated on that as well.
    """

    def __init__(self, federation: Federation, share: float, seed: int) -> None:
        sizes = federation.sizes
        held = np.floor(share * sizes).astype(np.int64)
        self.num_held_out: IntVector = np.where(held < _FEWEST, 0, held)  # 0: evaluated on its training data, (M,)
        self._whole, self._sizes = federation, sizes
        self._in_time_order = traits_of_federation(federation).in_time_order
        self._seed = seed

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""
        return self._sizes - self.num_held_out

    def _order(self, client: int) -> IntVector:
        """Return all examples of a client, those that it trains on first; as they are where none is held out."""
        if not self.num_held_out[client] or self._in_time_order:
            return np.arange(self._sizes[client])
        keys = client_keys(self._seed, Purpose.HELD_OUT, 0, [client], int(self._sizes[client]))
        return np.argsort(keys[0], kind="stable")

    def batch(self, client: int, indices: IntVector) -> Examples:
        """Return some of the examples that the client trains on."""
        return self._whole.batch(client, self._order(client)[indices])

    def own_batch(self, client: int, max_examples: int) -> Examples:
        """Return the examples on which a client is evaluated."""
        order, held = self._order(client), int(self.num_held_out[client])
        return self._whole.batch(client, np.sort(order[-held:] if held else order)[:max_examples])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _WHOLE:
            raise AttributeError(name)
        return getattr(self._whole, name)

    def training(self) -> "HeldOut | TensorFederation":
        """Return the federation to train on; over tensors it is one of its kind, which clients can be stacked of."""
        if not isinstance(self._whole, TensorFederation):
            return self
        reordered = copy.copy(self._whole)
        reordered.order = self._whole.order.copy()
        for client, (begin, end) in enumerate(zip(reordered.offsets, reordered.offsets[1:], strict=False)):
            reordered.order[begin:end] = self._whole.order[begin:end][self._order(client)]
        reordered._sizes = self.sizes
        return reordered


class ValidationSplit(DataSource):
    """Holds a share of each client's training examples out and evaluates on them; the test data is not looked at.

    Args:
        source: The data.
        share: How much of each client's examples is held out; each client keeps at least one.

    >>> from fl_lightning.data import IID, Digits
    >>> part, whole = ValidationSplit(Digits(IID(4)), 0.25).load(0), Digits(IID(4)).load(0)
    >>> int(whole.sizes.sum()), int(part.sizes.sum()), len(part.test[1])
    (1438, 1078, 360)
    """

    def __init__(self, source: DataSource, share: float = 0.1) -> None:
        if not 0 < share < 1:
            raise ValueError(f"validation={share} must be a share between 0 and 1: 0.1 holds out a tenth")
        self.source, self.share = source, share
        self.num_classes = getattr(source, "num_classes", None)  # which no source must have

    def load(self, seed: int) -> TensorFederation | DatasetFederation:
        """Return the federation without what is held out, which takes the place of its test data."""
        federation = self.source.load(seed)
        if type(federation) not in (TensorFederation, DatasetFederation):  # what others measure might be lost
            raise ValueError(
                f"validation={self.share}: nothing can be held out of {type(self.source).__name__}, whose federation "
                f"is a {type(federation).__name__}: leave it out"
            )
        kept, held = [], []
        for client, size in enumerate(federation.sizes.tolist()):
            number = min(round(self.share * size), size - 1)
            order = np.argsort(client_keys(seed, Purpose.VALIDATION, 0, [client], size)[0], kind="stable")
            if federation.in_time_order:
                order = np.arange(size)[::-1]
            kept.append(np.sort(order[number:]))
            held.append(np.sort(order[:number]))
        if not sum(map(len, held)):
            raise ValueError(
                f"validation={self.share} holds nothing out of clients with at most {federation.sizes.max()} examples: "
                "use a larger share"
            )
        if isinstance(federation, TensorFederation):
            own = [federation.order[start:] for start in federation.offsets[:-1]]
            kept, held = ([rows[part] for rows, part in zip(own, parts, strict=True)] for parts in (kept, held))
            rows = torch.from_numpy(np.concatenate(held))
            test = tree_map(lambda tensor: tensor.index_select(0, rows), federation.train)
            return TensorFederation(federation.train, test, kept, federation.names, federation.in_time_order)
        datasets = federation.datasets
        common: ConcatDataset[Any] = ConcatDataset([each for each in map(_subset, datasets, held) if len(each)])
        made = DatasetFederation(list(map(_subset, datasets, kept)), common, federation.collate, names=federation.names)
        made.datamodule = federation.datamodule
        return made


def _subset(data: Dataset[Any], part: IntVector) -> Subset[Any]:
    return Subset(data, part.tolist())


class FlippedLabels(DataSource):
    """Gives a share of the clients wrong labels, class y becomes C - 1 - y; the test data stays as it is.

    The clients are those that :class:`fl_lightning.uploads.Attack` would choose under the same seed.

    Args:
        data: Data set of inputs and labels.
        share: Of the clients.
        num_classes: C; the highest label of the data plus 1 by default.
    """

    def __init__(self, data: DataSource, share: float = 0.1, num_classes: int | None = None) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share} must be in [0, 1): a share of the clients")
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes={num_classes} must be at least 2")
        self.data, self.share = data, share
        self.num_classes = num_classes

    def load(self, seed: int) -> TensorFederation:
        """Load the data and flip the labels of the attackers."""
        federation = self.data.load(seed)
        train = federation.train if isinstance(federation, TensorFederation) else None
        if not isinstance(train, tuple | list) or len(train) != 2:
            raise ValueError(
                f"FlippedLabels needs inputs and labels in tensors, and {type(self.data).__name__} has something else"
            )
        inputs, labels = train
        highest = int(labels.max()) if self.num_classes is None else self.num_classes - 1
        flipped = labels.clone()
        clients = np.split(federation.order, federation.offsets[1:-1])
        for client in attackers(len(clients), self.share, seed).tolist():
            own = torch.from_numpy(clients[client])
            flipped[own] = highest - labels[own]
        return TensorFederation((inputs, flipped), federation.test, clients, federation.names, federation.in_time_order)
