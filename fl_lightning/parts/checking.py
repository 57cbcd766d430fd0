"""Checks of what users hand over, with errors that say what was given and what is wanted."""

from typing import Any, get_args


def one_of(name: str, value: object, choices: Any) -> None:
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
        raise ValueError(f"{name}={value!r} is unknown: use {', '.join(others)} or {last}")
