"""The name that somebody meant who wrote another one. Imports nothing heavy."""

import difflib
from collections.abc import Iterable

_ALIKE = 0.65  # of 1: one wrong letter in three is too much


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a word; None where none is like it.

    >>> nearest("fedacz", ["fedavg", "fedacs"]), nearest("Uniform", ["Importance"])
    ('fedacs', None)
    """
    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:100].lower(), folded, n=1, cutoff=_ALIKE)
    return folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a question to put behind an error, or nothing.

    >>> suggestion("fedacz", ["fedavg", "fedacs"])
    ' (did you mean fedacs?)'
    """
    found = nearest(word, known)
    return "" if found is None or found == word else f" (did you mean {found}?)"
