"""A share of each client's data that nobody trains on: for the client's own evaluation, or to tune settings on."""

import copy
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import ConcatDataset, Subset

from fl_lightning.data.federation import DatasetFederation, Examples, TensorFederation
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Federation
from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.types import IntVector

_FEWEST = 5  # held-out examples; with fewer an accuracy says nothing
_WHOLE = ("train", "order", "offsets", "tensors")  # through which what is held out could be seen


class HeldOut:
    """A federation whose clients train on what is left after a share of their data was held out.

    Which examples are held out is a function of (seed, client). A client with too little data trains on all of it, and
    is evaluated on that as well.

    Args:
        federation: With all the data.
        share: Of each client's examples, in [0, 1).
        seed: Of the choice.

    Attributes:
        num_held_out: How many examples of each client are held out; 0: it is evaluated on its training data, (M,).
    """

    def __init__(self, federation: Federation, share: float, seed: int) -> None:
        sizes = federation.sizes
        held = np.floor(share * sizes).astype(np.int64)
        self.num_held_out: IntVector = np.where(held < _FEWEST, 0, held)
        self._whole = federation
        self._sizes = sizes
        self._seed = seed

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""
        return self._sizes - self.num_held_out

    def _order(self, client: int) -> IntVector:
        """Return all examples of a client, those that it trains on first; as they are where none is held out."""
        if not self.num_held_out[client]:
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

    @property
    def num_classes(self) -> int | None:
        """As the source has it."""
        return getattr(self.source, "num_classes", None)

    def load(self, seed: int) -> TensorFederation | DatasetFederation:
        """Return the federation without what is held out, which takes the place of its test data."""
        federation = self.source.load(seed)
        if type(federation) not in (TensorFederation, DatasetFederation):  # what others measure might be lost
            raise ValueError(
                f"validation={self.share}: nothing can be held out of {type(self.source).__name__}, whose federation "
                f"is a {type(federation).__name__}: leave it out"
            )
        kept, held = zip(
            *(self._split(client, int(size), seed) for client, size in enumerate(federation.sizes)), strict=True
        )
        if not sum(map(len, held)):
            raise ValueError(
                f"validation={self.share} holds nothing out of clients with at most {federation.sizes.max()} examples: "
                "use a larger share"
            )
        if isinstance(federation, TensorFederation):
            return _of_tensors(federation, kept, held)
        return _of_datasets(federation, kept, held)

    def _split(self, client: int, size: int, seed: int) -> tuple[IntVector, IntVector]:
        """Return which of a client's examples are kept and which are held out, each in their order."""
        number = min(round(self.share * size), size - 1)
        order = np.argsort(client_keys(seed, Purpose.VALIDATION, 0, [client], size)[0], kind="stable")
        return np.sort(order[number:]), np.sort(order[:number])


def _of_tensors(
    federation: TensorFederation, kept: tuple[IntVector, ...], held: tuple[IntVector, ...]
) -> TensorFederation:
    own = [federation.order[start:] for start in federation.offsets[:-1]]
    rows = torch.from_numpy(np.concatenate([places[part] for places, part in zip(own, held, strict=True)]))
    test = tree_map(lambda tensor: tensor.index_select(0, rows), federation.train)
    return TensorFederation(federation.train, test, [places[part] for places, part in zip(own, kept, strict=True)])


def _of_datasets(
    federation: DatasetFederation, kept: tuple[IntVector, ...], held: tuple[IntVector, ...]
) -> DatasetFederation:
    pairs = list(zip(federation.datasets, kept, held, strict=True))
    test: ConcatDataset[Any] = ConcatDataset([Subset(data, part.tolist()) for data, _, part in pairs if len(part)])
    made = DatasetFederation([Subset(data, part.tolist()) for data, part, _ in pairs], test, federation.collate)
    made.datamodule = federation.datamodule
    return made
