"""Clients whose data is made or read when they are drawn: a million of them cost one array of sizes.

The tensors that were used last are kept, up to a number of bytes; those asked for soon are loaded ahead.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.data.federation import Examples, check_indices, num_examples, refuse_empty, slices
from fl_lightning.types import IntVector, RoundPlan


def num_bytes(examples: Examples) -> int:
    """Return the bytes of all tensors of a batch.

    >>> num_bytes((torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)))
    48
    """
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(examples) if isinstance(leaf, torch.Tensor))


class ClientCache:
    """Keeps what was loaded of clients; what was used longest ago leaves first, what nobody used yet leaves last.

    Several threads may ask at once: nobody is loaded twice at the same time.

    Args:
        load: Returns the examples of a client; called from several threads.
        max_bytes: Most bytes that are kept, beside what was loaded last.
    """

    def __init__(self, load: Callable[[int], Examples], max_bytes: int) -> None:
        self._load, self.max_bytes = load, max_bytes
        self._used: OrderedDict[int, Future[Examples]] = OrderedDict()  # least recently used first
        self._ahead: OrderedDict[int, Future[Examples]] = OrderedDict()  # loaded, or being loaded, before anybody asked
        self._sizes: dict[int, int] = {}  # bytes of each client that is loaded
        self._wishes: deque[int] = deque()
        self._then: Callable[[], Iterable[int]] | None = None
        self._lock, self._thread = threading.Lock(), threading.Thread()
        self.num_loads = 0

    @property
    def bytes(self) -> int:
        """Bytes that are kept now."""
        with self._lock:
            return sum(self._sizes.values())

    def __getitem__(self, client: int) -> Examples:
        """Return the examples of a client, loaded now if they are not there."""
        with self._lock:
            found = self._used.get(client) or self._ahead.pop(client, None)
            mine = found is None
            entry: Future[Examples] = Future() if found is None else found
            self._used[client] = entry
            self._used.move_to_end(client)
        if mine:
            self._fetch(client, entry)
        return entry.result()

    def prefetch(self, clients: Iterable[int], then: Callable[[], Iterable[int]] | None = None) -> None:
        """Load clients in a thread, in this order, until half of the cache is full of what nobody used yet.

        Wishes replace those of an earlier call. What fails to load is left to whoever asks for it.

        Args:
            clients: Those who are needed soonest.
            then: Asked, in the thread, who is needed after them.
        """
        with self._lock:
            self._wishes, self._then = deque(clients), then
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, daemon=True, name="prefetch")
                self._thread.start()

    def _work(self) -> None:
        while (wish := self._next_wish()) is not None:
            client, entry = wish
            self._fetch(client, entry)

    def _next_wish(self) -> tuple[int, "Future[Examples]"] | None:
        while True:
            with self._lock:
                while self._wishes:
                    client = self._wishes.popleft()
                    if client in self._used or client in self._ahead:
                        continue
                    if 2 * sum(self._sizes.get(each, 0) for each in self._ahead) >= self.max_bytes:
                        self._wishes.clear()
                        self._then = None
                        break
                    entry: Future[Examples] = Future()
                    self._ahead[client] = entry
                    return client, entry
                then, self._then = self._then, None
                if then is None:
                    self._thread = threading.Thread()  # a later call starts another
                    return None
            later = list(then())
            with self._lock:
                self._wishes = self._wishes or deque(later)

    def _fetch(self, client: int, entry: "Future[Examples]") -> None:
        """Load a client; a failure is that of whoever waits for it, and the next one tries again."""
        try:
            examples = self._load(client)
        except BaseException as error:
            with self._lock:
                for kept in (self._used, self._ahead):
                    if kept.get(client) is entry:
                        del kept[client]
            entry.set_exception(error)
            return
        with self._lock:
            self.num_loads += 1
            self._sizes[client] = num_bytes(examples)
            self._evict(client)
        entry.set_result(examples)

    def _evict(self, newest: int) -> None:
        for kept in (self._used, self._ahead):
            for client in list(kept):
                if sum(self._sizes.values()) <= self.max_bytes:
                    return
                if client != newest and client in self._sizes:  # those being loaded have no size yet
                    del kept[client]
                    del self._sizes[client]


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
        load: Callable[[int], Examples],
        test: Examples = None,
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
        refuse_empty(self._sizes)
        self.test, self.ahead = test, ahead
        self._num_test = 0 if test is None else num_examples("test", test)
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

    def _checked(self, client: int) -> Examples:
        examples = self._load(client)
        found = num_examples(f"the data of client {client}", examples)
        if found != self._sizes[client]:
            raise ValueError(f"load({client}) returned {found} examples, but sizes[{client}] is {self._sizes[client]}")
        return examples

    def tensors(self, client: int) -> Examples:
        """Return all training examples of a client."""
        return self.cache[client]

    def batch(self, client: int, indices: IntVector) -> Examples:
        """Return the client's examples ``indices``."""
        check_indices(client, indices, int(self._sizes[client]))
        rows = torch.from_numpy(np.array(indices))
        return tree_map(lambda tensor: tensor.index_select(0, rows), self.tensors(client))

    def prefetch(self, clients: IntVector, then: Callable[[], Iterable[int]] | None = None) -> None:
        """Load clients in a thread, those needed soonest first."""
        if self.ahead:
            self.cache.prefetch(clients.tolist(), then)

    def test_batches(self, batch_size: int) -> Iterator[Examples]:
        """Yield the test data in order; the last batch may be smaller."""
        yield from slices(self.test, self._num_test, batch_size)

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return nothing: the data knows no optimum."""
        return {}
