"""Clients whose data is made or read when they are drawn: a million of them cost one array of sizes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map

from fl_lightning.data.cache import ClientCache
from fl_lightning.data.federation import _check_indices, _num_examples, _refuse_empty
from fl_lightning.types import IntVector, RoundPlan


class LazyFederation:
    """A federation that loads a client's tensors when the client is drawn, and keeps those used last.

    While a round trains, a thread loads the clients that come next, and those of the next round where the draw does
    not depend on what this round teaches. Clients with tensors of equal shapes train stacked.

    Args:
        sizes: Number of training examples of each client, (M,).
        load: Returns the training examples of a client: a tuple, list or dict of tensors, examples along dimension 0.
            It is called from several threads and must return the same each time: what it draws must be a function of
            the client's number.
        test: The test examples, in the same structure; without any, nothing is evaluated.
        cache_bytes: Most bytes of clients' tensors that are kept.
        ahead: Whether clients are loaded ahead of their training.

    >>> federation = LazyFederation([3] * 1_000_000, lambda client: (torch.full((3,), client), torch.arange(3)))
    >>> federation.batch(123_456, np.array([2, 0]))
    (tensor([123456, 123456]), tensor([2, 0]))
    """

    def __init__(
        self,
        sizes: npt.ArrayLike,
        load: Callable[[int], Any],
        test: Any = None,
        cache_bytes: int = 1 << 30,
        ahead: bool = True,
    ) -> None:
        given = np.asarray(sizes)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ValueError(
                f"sizes must be one whole number for each client, got {given.dtype} of shape {given.shape}"
            )
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes={cache_bytes} must not be negative")
        self._sizes: IntVector = given.astype(np.int64)
        _refuse_empty(self._sizes)
        self.test, self.ahead = test, ahead
        self._num_test = 0 if test is None else _num_examples("test", test)
        self._load = load
        self.cache = ClientCache(self._checked, cache_bytes)

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self._sizes)

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""
        return self._sizes.copy()

    def _checked(self, client: int) -> Any:
        examples = self._load(client)
        found = _num_examples(f"the data of client {client}", examples)
        if found != self._sizes[client]:
            raise ValueError(f"load({client}) returned {found} examples, but sizes[{client}] is {self._sizes[client]}")
        return examples

    def tensors(self, client: int) -> Any:
        """Return all training examples of a client."""
        return self.cache[client]

    def batch(self, client: int, indices: IntVector) -> Any:
        """Return the client's examples ``indices``."""
        _check_indices(client, indices, int(self._sizes[client]))
        rows = torch.from_numpy(np.array(indices))
        return tree_map(lambda tensor: tensor.index_select(0, rows), self.tensors(client))

    def prefetch(self, clients: IntVector, then: Callable[[], Iterable[int]] | None = None) -> None:
        """Load clients in a thread, those needed soonest first."""
        if self.ahead:
            self.cache.prefetch(clients.tolist(), then)

    def test_batches(self, batch_size: int) -> Iterator[Any]:
        """Yield the test data in order; the last batch may be smaller."""
        for start in range(0, self._num_test, batch_size):
            yield tree_map(lambda tensor, start=start: tensor[start : start + batch_size], self.test)

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return nothing: the data knows no optimum."""
        return {}
