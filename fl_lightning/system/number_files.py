"""One number for each client from a file: what is too long for a configuration."""

import json
from pathlib import Path

import numpy as np

from fl_lightning.types import Vector

KINDS = (".csv", ".txt", ".json", ".npy")


def read_numbers(path: str | Path) -> Vector:
    """Return the numbers of a file: CSV or text with one per line, a JSON list, or a one-dimensional ``.npy`` array.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds something else than finite numbers.
    """
    path = Path(path)
    if path.suffix not in KINDS:
        raise ValueError(f"{path} must be a file of numbers: {', '.join(KINDS)}")
    if not path.is_file():
        raise FileNotFoundError(f"file of numbers {path} does not exist")
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            values = np.asarray(json.loads(path.read_text(encoding="utf-8-sig")))
        else:
            lines = path.read_text(encoding="utf-8-sig").split()
            values = np.array([float(line.rstrip(",;")) for line in lines])
    except (ValueError, TypeError, OSError, EOFError, RecursionError) as error:
        raise ValueError(f"{path} must hold one number for each client: {error}") from None
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise ValueError(
            f"{path} must hold a list of finite numbers, one for each client, but has shape {values.shape}"
        )
    return values.astype(np.float64)
