"""A share of each client's data that nobody trains on, for the client's own evaluation."""

import copy
from typing import Any

import numpy as np

from fl_lightning.data.federation import TensorFederation
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
        self._whole, self._sizes, self._seed = federation, sizes, seed

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

    def batch(self, client: int, indices: IntVector) -> Any:
        """Return some of the examples that the client trains on."""
        return self._whole.batch(client, self._order(client)[indices])

    def own_batch(self, client: int, max_examples: int) -> Any:
        """Return the examples on which a client is evaluated."""
        order, held = self._order(client), int(self.num_held_out[client])
        return self._whole.batch(client, np.sort(order[-held:] if held else order)[:max_examples])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _WHOLE:
            raise AttributeError(name)
        return getattr(self._whole, name)

    def training(self) -> Any:
        """Return the federation to train on; over tensors it is one of its kind, which clients can be stacked of."""
        if not isinstance(self._whole, TensorFederation):
            return self
        reordered = copy.copy(self._whole)
        reordered.order = self._whole.order.copy()
        for client, (begin, end) in enumerate(zip(reordered.offsets, reordered.offsets[1:], strict=False)):
            reordered.order[begin:end] = self._whole.order[begin:end][self._order(client)]
        reordered._sizes = self.sizes
        return reordered
