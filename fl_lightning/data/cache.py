"""The clients' tensors that were used last, up to a number of bytes, with those asked for soon loaded ahead."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Load = Callable[[int], Any]


def num_bytes(examples: Any) -> int:
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

    def __init__(self, load: Load, max_bytes: int) -> None:
        self._load, self.max_bytes = load, max_bytes
        self._used: OrderedDict[int, Future[Any]] = OrderedDict()  # least recently used first
        self._ahead: OrderedDict[int, Future[Any]] = OrderedDict()  # loaded, or being loaded, before anybody asked
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

    def __getitem__(self, client: int) -> Any:
        """Return the examples of a client, loaded now if they are not there."""
        with self._lock:
            found = self._used.get(client) or self._ahead.pop(client, None)
            mine = found is None
            entry: Future[Any] = Future() if found is None else found
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

    def _next_wish(self) -> tuple[int, "Future[Any]"] | None:
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
                    entry: Future[Any] = Future()
                    self._ahead[client] = entry
                    return client, entry
                then, self._then = self._then, None
                if then is None:
                    self._thread = threading.Thread()  # a later call starts another
                    return None
            later = list(then())
            with self._lock:
                self._wishes = self._wishes or deque(later)

    def _fetch(self, client: int, entry: "Future[Any]") -> None:
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
