"""Clients that are files in a folder, read when they are drawn; and tensors that stay on disk."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fl_lightning.data.federation import Examples
from fl_lightning.data.lazy import LazyFederation
from fl_lightning.parts.bases import DataSource
from fl_lightning.system.traces import read_numbers
from fl_lightning.types import IntVector

_CLIENT = re.compile(r"client_(\d+)\.(pt|npz|parquet)")
_KINDS = ("pt", "npz", "parquet")


def mapped(path: str | Path) -> Examples:
    """Return the tensors of a file without reading it: what is used of them is read from the disk, page by page.

    So :class:`~fl_lightning.data.TensorFederation` works on data larger than the memory. Changes stay in memory.

    Args:
        path: An ``.npy`` file of numpy, or what ``torch.save`` wrote: tensors, and containers of them.

    Raises:
        ValueError: If it is neither.
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

    name = "files"
    num_classes = 0
    class_names: tuple[str, ...] = ()

    def __init__(
        self, folder: str, columns: Sequence[str] = (), sizes: str | None = None, cache_bytes: int = 1 << 30
    ) -> None:
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r} must be a list of names: use [{columns!r}]")
        self.folder = Path(folder)
        self.columns = list(columns)
        self.sizes = sizes
        self.cache_bytes = cache_bytes

    def load(self, seed: int) -> LazyFederation:
        """Find the files and return the federation that reads them."""
        if not self.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {self.folder} with the clients' files")
        found = sorted(
            (int(match[1]), path) for path in self.folder.iterdir() if (match := _CLIENT.fullmatch(path.name))
        )
        if not found:
            raise FileNotFoundError(f"{self.folder} has no client's file: client_000000.pt, .npz or .parquet")
        numbers = [number for number, _ in found]
        twice = next((path for place, (number, path) in enumerate(found[1:]) if numbers[place] == number), None)
        if twice is not None:
            raise ValueError(f"{self.folder} has two files of one client, one of them {twice.name}: keep one")
        paths = [path for _, path in found]
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
            if self.columns:
                content = mapped(path)
                missing = [name for name in self.columns if not isinstance(content, dict) or name not in content]
                if missing:
                    raise ValueError(f"{path} has no {missing[0]!r}: columns= goes with a dict of tensors")
                return tuple(content[name] for name in self.columns)
            return mapped(path)
        try:
            return _arrays(path, self.columns) if path.suffix == ".npz" else _table(path, self.columns)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error})") from None


def _arrays(path: Path, columns: list[str]) -> tuple[torch.Tensor, ...]:
    with np.load(path, allow_pickle=False) as content:
        return tuple(torch.from_numpy(content[name]) for name in columns or content.files)


def _table(path: Path, columns: list[str]) -> tuple[torch.Tensor, ...]:
    table = _parquet().read_table(path, columns=columns or None)
    return tuple(_column(name, table.column(name)) for name in columns or table.column_names)


def _column(name: str, column: Any) -> torch.Tensor:
    values = column.to_numpy()
    if values.dtype == object:  # one list for each row
        values = np.stack(list(values))
    if values.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} holds {values.dtype}, and numbers are wanted")
    return torch.from_numpy(np.array(values))


def _num_rows(path: Path) -> int:
    """Return how many examples a file has, from its head alone."""
    if path.suffix == ".parquet":
        return int(_parquet().read_metadata(path).num_rows)
    if path.suffix == ".pt":
        leaves = tree_leaves(mapped(path))
        return len(leaves[0]) if leaves and isinstance(leaves[0], torch.Tensor) and leaves[0].ndim else 0
    try:
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape = read(file)[0]
    except (OSError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error})") from None
    return int(shape[0]) if shape else 0


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError("parquet files need pyarrow: pip install pyarrow") from None
    return parquet
