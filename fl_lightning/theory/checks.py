"""Checks of what is handed over: equations take finite float64 columns of one length, options one of a few strings."""

from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]


def one_of(name: str, value: object, choices: object) -> None:
    """Refuse a value that is not one of the strings of a ``Literal``: Python does not check annotations by itself.

    Args:
        name: Of the argument.
        value: Of the argument.
        choices: The argument's ``Literal[...]``.

    Raises:
        ValueError: If the value is none of them.

    >>> from typing import Literal
    >>> one_of("unit", "seconds", Literal["iterations", "epochs"])
    Traceback (most recent call last):
        ...
    ValueError: unit='seconds' is unknown: use 'iterations' or 'epochs'
    """
    known = get_args(choices)
    if value not in known:
        *others, last = map(repr, known)
        choice = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{name}={value!r} is unknown: use {choice}")


def columns(**named: npt.ArrayLike) -> tuple[Vector, ...]:
    """Return the named values as finite float64 columns of one length; a scalar stands for the same value in each row.

    >>> columns(weights=[0.5, 0.5], accumulation=3)
    (array([0.5, 0.5]), array([3., 3.]))
    >>> columns(weights=[0.5, 0.5], accumulation=[1, 2, 3])
    Traceback (most recent call last):
    ...
    ValueError: one value per client is wanted, but lengths differ: weights 2, accumulation 3
    """
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in named.items()}
    for name, array in arrays.items():
        if array.ndim > 1:
            raise ValueError(f"{name} must have one dimension, one value per client, but its shape is {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, but {clients_where(~np.isfinite(array))} not")
    lengths = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"one value per client is wanted, but lengths differ: {listed}")
    size = max(lengths.values(), default=1)
    if size == 0:
        raise ValueError(f"at least one client is wanted, but {', '.join(lengths)} is empty")
    return tuple(array if array.ndim else np.full(size, float(array)) for array in arrays.values())


def clients_where(mask: npt.NDArray[np.bool_], limit: int = 8) -> str:
    """Name the clients a mask selects, as the subject of a sentence.

    >>> clients_where(np.array([False, True, True])), clients_where(np.array([True, False]))
    ('clients 1, 2 are', 'client 0 is')
    """
    found = np.flatnonzero(mask)
    listed = ", ".join(str(client) for client in found[:limit])
    if len(found) > limit:
        return f"clients {listed} and {len(found) - limit} more are"
    return f"client {listed} is" if len(found) == 1 else f"clients {listed} are"


def require(condition: npt.NDArray[np.bool_], name: str, wanted: str) -> None:
    """Raise a ValueError that names the clients for which a condition on a column does not hold."""
    if not condition.all():
        raise ValueError(f"{name} must be {wanted}, but {clients_where(~condition)} not")


def require_rates(failure_rates: Vector, certain: bool = False) -> None:
    """Raise a ValueError unless all are probabilities below 1, or up to 1 if ``certain``."""
    lowest, highest = failure_rates.min(), failure_rates.max()  # quicker than a mask of each client
    if lowest < 0 or highest > 1 or (highest == 1 and not certain):
        fine = (failure_rates >= 0) & ((failure_rates <= 1) if certain else (failure_rates < 1))
        require(fine, "failure_rates", "between 0 and 1" if certain else "at least 0 and below 1")
