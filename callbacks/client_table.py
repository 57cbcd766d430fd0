"""The files about clients that a run leaves: one row for each, or groups and quantiles where there are too many."""

import csv
import importlib.util
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_lightning.output import write_durably
from fl_lightning.runs.records import EVERYBODY, QUANTILES

Column = npt.NDArray[np.generic]
MAX_ROWS = 100_000  # clients with a row each in the CSV file; beyond that it has one for each group
GROUPS = 1_000
LEVELS = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def write_client_table(path: Path, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write ``clients.csv``: one row for each client, or for each of 1,000 groups of neighbours beyond 100,000 clients.

    With groups, quantiles of each column over all clients go to ``clients_quantiles.csv``, and where pyarrow is
    installed the row of each client to ``clients.parquet``.

    Args:
        path: The CSV file; the others come beside it.
        columns: The table, without the clients' numbers.
    """
    table = {name: np.asarray(values) for name, values in columns.items()}
    num_clients = len(next(iter(table.values())))
    if num_clients <= MAX_ROWS:
        write_durably(path, _csv({"client": range(num_clients), **table}))
        return
    write_durably(path, _csv(grouped(table, GROUPS)))
    quantiles = {name: np.quantile(values, LEVELS) for name, values in table.items()}
    write_durably(path.with_name(QUANTILES), _csv({"quantile": LEVELS, **quantiles}))
    if importlib.util.find_spec("pyarrow") is not None:
        write_durably(path.with_name(EVERYBODY), _parquet({"client": np.arange(num_clients), **table}))


def grouped(table: Mapping[str, Column], num_groups: int) -> dict[str, Column]:
    """Return the means of groups of neighbours, with the first client and the number of clients of each group.

    >>> grouped({"size": np.array([1.0, 3.0, 5.0])}, 2)["size"].tolist()
    [2.0, 5.0]
    >>> {name: values.tolist() for name, values in grouped({"size": np.ones(3)}, 2).items() if name != "size"}
    {'client': [0, 2], 'num_clients': [2, 1]}
    """
    num_clients = len(next(iter(table.values())))
    begins = np.array([part[0] for part in np.array_split(np.arange(num_clients), num_groups)])
    sizes = np.diff(begins, append=num_clients)
    means = {name: np.add.reduceat(values, begins, dtype=np.float64) / sizes for name, values in table.items()}
    return {"client": begins, "num_clients": sizes, **means}


def _csv(columns: Mapping[str, Iterable[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _parquet(columns: Mapping[str, Column]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    content = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(columns)), content)
    return content.getvalue()
