"""Clients whose data is made or read when they are drawn: a million of them cost one array of sizes.

The tensors that were used last are kept, up to a number of bytes; those asked for soon are loaded ahead. Clients can be
files in a folder, and tensors can stay on disk.
"""

import re
import threading
import zipfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.data.federation import Examples, Sized, num_examples
from fl_lightning.parts.bases import DataSource
from fl_lightning.system.traces import read_numbers
from fl_lightning.types import IntVector

_KINDS = ("pt", "npz", "parquet")
_CLIENT = re.compile(rf"client_(\d+)\.({'|'.join(_KINDS)})")


class ClientCache:
    """Keeps what was loaded of clients; what was used longest ago leaves first, what nobody used yet leaves last.

    Several threads may ask at once: nobody is loaded twice at the same time. Besides what was loaded last, at most
    ``max_bytes`` are kept.
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
            entry = self._used[client] = found or Future()
            self._used.move_to_end(client)
        if found is None:
            self._fetch(client, entry)
        return entry.result()

    def prefetch(self, clients: Iterable[int], then: Callable[[], Iterable[int]] | None = None) -> None:
        """Load clients in a thread, in this order, until half of the cache is full of what nobody used yet.

        Wishes replace those of an earlier call. ``then`` is asked, in the thread, who is needed after them. What fails
        to load is left to whoever asks for it.
        """
        with self._lock:
            self._wishes, self._then = deque(clients), then
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, daemon=True, name="prefetch")
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                client, then = self._next_wish(), self._then
                if client is None and then is None:
                    self._thread = threading.Thread()  # a later call starts another
                    return
                if client is None:
                    self._then = None
                else:
                    entry = self._ahead[client] = Future()
            if client is not None:
                self._fetch(client, entry)
            elif then is not None:
                later = deque(then())
                with self._lock:
                    self._wishes = self._wishes or later

    def _next_wish(self) -> int | None:
        if 2 * sum(self._sizes.get(each, 0) for each in self._ahead) >= self.max_bytes:
            self._wishes.clear()
            self._then = None
        while self._wishes:
            client = self._wishes.popleft()
            if client not in self._used and client not in self._ahead:
                return client
        return None

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
            self._sizes[client] = sum(leaf.nbytes for leaf in tree_leaves(examples))
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


class LazyFederation(Sized):
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
        super().__init__(given)
        self.test, self.ahead = test, ahead
        self._num_test = 0 if test is None else num_examples("test", test)
        self._load = load
        self.cache = ClientCache(self._checked, cache_bytes)

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
        self.check_indices(client, indices)
        rows = torch.from_numpy(np.array(indices))
        return tree_map(lambda tensor: tensor.index_select(0, rows), self.tensors(client))

    def prefetch(self, clients: IntVector, then: Callable[[], Iterable[int]] | None = None) -> None:
        """Load clients in a thread, those needed soonest first."""
        if self.ahead:
            self.cache.prefetch(clients.tolist(), then)


def mapped(path: str | Path) -> Examples:
    """Return the tensors of a file without reading it: what is used of them is read from the disk, page by page.

    So :class:`~fl_lightning.data.TensorFederation` works on data larger than the memory. Changes stay in memory. The
    file is an ``.npy`` file of numpy, or what ``torch.save`` wrote: tensors, and containers of them.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} with tensors (.npy or .pt)")
    try:
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
        return torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # damaged files break the readers in many ways
        raise ValueError(f"{path} holds no tensors, or is damaged ({type(error).__name__}: {error})") from None


class ClientFiles(DataSource):
    """One file for each client: ``client_000123.pt``, ``.npz`` or ``.parquet``; clients come in the order of numbers.

    A ``.pt`` file holds a tuple, list or dict of tensors with examples along dimension 0, as ``training_step`` takes
    them. Of the others, each array or column becomes a tensor, and a batch is the tuple of them. The common test data
    is ``test.pt``, ``test.npz`` or ``test.parquet`` in the same folder; without it nothing is evaluated.

    Args:
        folder: Where the files are.
        columns: Which arrays or columns make a batch, in this order; all in the order of the file by default.
        sizes: A file with the number of examples of each client (.csv, .json, .npy); otherwise the head of each file is
            read once at the start, which takes seconds for 10,000 clients.
        cache_bytes: Most bytes of clients' tensors that are kept in memory.
    """

    def __init__(
        self, folder: str, columns: Sequence[str] = (), sizes: str | None = None, cache_bytes: int = 1 << 30
    ) -> None:
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r} must be a list of names: use [{columns!r}]")
        self.folder, self.columns = Path(folder), list(columns)
        self.sizes, self.cache_bytes = sizes, cache_bytes

    def load(self, seed: int) -> LazyFederation:
        """Find the files and return the federation that reads them."""
        if not self.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {self.folder} with the clients' files")
        found: dict[int, Path] = {}
        for path in sorted(self.folder.iterdir()):
            match = _CLIENT.fullmatch(path.name)
            if match and found.setdefault(int(match[1]), path) is not path:
                raise ValueError(f"{self.folder} has two files of one client, one of them {path.name}: keep one")
        if not found:
            raise FileNotFoundError(f"{self.folder} has no client's file: client_000000.pt, .npz or .parquet")
        paths = [found[number] for number in sorted(found)]
        tests = [path for kind in _KINDS if (path := self.folder / f"test.{kind}").is_file()]
        if len(tests) > 1:
            raise ValueError(f"{self.folder} has {' and '.join(path.name for path in tests)}: keep one")
        test = self.read(tests[0]) if tests else None
        return LazyFederation(self._sizes(paths), lambda client: self.read(paths[client]), test, self.cache_bytes)

    def _sizes(self, paths: list[Path]) -> IntVector:
        if self.sizes is None:
            return np.array([_num_rows(path) for path in paths], dtype=np.int64)
        sizes = read_numbers(self.sizes)
        if sizes.shape != (len(paths),) or not (sizes == np.floor(sizes)).all():
            raise ValueError(f"{self.sizes} must hold {len(paths)} whole numbers, one for each client's file")
        return sizes.astype(np.int64)

    def read(self, path: Path) -> Examples:
        """Return the tensors in a file."""
        if path.suffix == ".pt":
            content = mapped(path)
            missing = [name for name in self.columns if not isinstance(content, dict) or name not in content]
            if missing:
                raise ValueError(f"{path} has no {missing[0]!r}: columns= goes with a dict of tensors")
            return tuple(content[name] for name in self.columns) if self.columns else content
        with _reading(path):
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as arrays:
                    return tuple(torch.from_numpy(arrays[name]) for name in self.columns or arrays.files)
            table = _parquet().read_table(path, columns=self.columns or None)
            return tuple(_column(name, table.column(name)) for name in self.columns or table.column_names)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error})") from None


def _column(name: str, column: Any) -> torch.Tensor:
    values = column.to_numpy()
    if values.dtype == object:  # one list for each row
        values = np.stack(list(values))
    if values.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} holds {values.dtype}, and numbers are wanted")
    return torch.from_numpy(np.array(values))


def _num_rows(path: Path) -> int:
    if path.suffix == ".pt":
        leaves = tree_leaves(mapped(path))
        return len(leaves[0]) if leaves and isinstance(leaves[0], torch.Tensor) and leaves[0].ndim else 0
    with _reading(path):
        if path.suffix == ".parquet":
            return int(_parquet().read_metadata(path).num_rows)
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape = read(file)[0]
            return int(shape[0]) if shape else 0


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError("parquet files need pyarrow: pip install pyarrow") from None
    return parquet
