"""A table with a column that says whose row it is, as a federation."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.partitions import by_owner
from fl_lightning.parts.bases import DataSource
from fl_lightning.seeding import Purpose, generator

if TYPE_CHECKING:
    from pandas import DataFrame


class FromTable(DataSource):
    """A pandas DataFrame or a CSV file in which a column names the client of each row.

    Clients are numbered in the order of their names, which ``clients.csv``, W&B and pages show. All other columns are
    inputs and must hold numbers. Labels that are whole numbers or texts become classes, others are targets of a
    regression.

    Args:
        table: The rows, or the path of a CSV file.
        client: The column that names the client.
        label: The column to predict.
        test: Test rows in the same columns, or the share of each client's rows that is held out for the test.
    """

    def __init__(
        self, table: "DataFrame | str", client: str, label: str, test: "DataFrame | str | float" = 0.2
    ) -> None:
        if isinstance(test, float) and not 0 < test < 1:
            raise ValueError(f"test={test} must be a share between 0 and 1, a table, or the path of one")
        self.table, self.test = table, test
        self.client, self.label = client, label
        self.names: list[str] = []

    def load(self, seed: int) -> TensorFederation:
        """Return the rows of each client."""
        frame = _read(self.table)
        missing = [name for name in (self.client, self.label) if name not in frame]
        if missing:
            raise ValueError(f"the table has no column {missing[0]!r}: its columns are {', '.join(map(str, frame))}")
        found, rows = by_owner(frame[self.client].astype(str))
        self.names = found.tolist()
        if isinstance(self.test, float):
            return self._held_out(frame, rows, self.test, seed)
        return TensorFederation(self._tensors(frame, frame), self._tensors(_read(self.test), frame), rows, self.names)

    def _held_out(self, frame: "DataFrame", rows: list[np.ndarray], share: float, seed: int) -> TensorFederation:
        parts = list(map(generator(seed, Purpose.PARTITION).permutation, rows))
        counts = [min(round(share * len(part)), len(part) - 1) for part in parts]
        train = [part[count:] for part, count in zip(parts, counts, strict=True)]
        held = np.concatenate([part[:count] for part, count in zip(parts, counts, strict=True)])
        if not len(held):
            raise ValueError(f"test={share} of each client's rows is no row: give more, or a table of test rows")
        return TensorFederation(self._tensors(frame, frame), self._tensors(frame.iloc[held], frame), train, self.names)

    def _tensors(self, frame: "DataFrame", known: "DataFrame") -> tuple[torch.Tensor, torch.Tensor]:
        inputs = frame.drop(columns=[self.client, self.label], errors="ignore")
        texts = [str(name) for name in inputs if inputs[name].dtype.kind not in "biuf"]
        if texts:
            raise ValueError(f"the column {texts[0]!r} holds no numbers: encode it, or drop it from the table")
        labels = frame[self.label]
        if inputs.isna().any(axis=None) or labels.isna().any():
            raise ValueError("the table has empty cells: fill them, or drop their rows")
        values = torch.from_numpy(inputs.to_numpy(dtype=np.float32, copy=True))
        if labels.dtype.kind == "f":
            return values, torch.from_numpy(labels.to_numpy(dtype=np.float32, copy=True))
        classes = np.unique(known[self.label])
        if not np.isin(labels, classes).all():
            raise ValueError(f"the test rows have a {self.label} that no training row has")
        return values, torch.from_numpy(np.searchsorted(classes, labels.to_numpy()).astype(np.int64))


def _read(table: "DataFrame | str") -> "DataFrame":
    try:
        import pandas
    except ImportError:
        raise ImportError("FromTable needs pandas: pip install pandas") from None
    if not isinstance(table, str | Path):
        return table.reset_index(drop=True)
    return pandas.read_csv(table)
