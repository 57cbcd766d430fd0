"""Lists of names and what they mean, as wide as the terminal. Imports nothing heavy."""

import shutil
import textwrap
from collections.abc import Iterable

_NARROW, _WIDE = 60, 120


def width() -> int:
    """Return how wide a text may be: as the terminal, 80 without one, never over 120."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size((80, 24)).columns))


def listed(pairs: Iterable[tuple[str, str]], total: int, name_width: int = 24) -> list[str]:
    """Return names and their meaning in two columns; a long name has a line of its own.

    >>> print(chr(10).join(listed([("seed", "Of every random stream."), ("a_long_name", "Short.")], 30, 8)))
      seed      Of every random
                stream.
      a_long_name
                Short.
    """
    indent = " " * (name_width + 4)
    lines = []
    for name, meaning in pairs:
        first = f"  {name:<{name_width}}  "
        if len(name) > name_width:
            lines.append(f"  {name}")
            first = indent
        lines += textwrap.wrap(meaning, total, initial_indent=first, subsequent_indent=indent) or [first.rstrip()]
    return lines


def wrapped(words: Iterable[str], total: int, indent: int) -> str:
    """Return names separated by commas, broken into lines that begin at a column.

    >>> print(wrapped(["one", "two", "three"], 14, 4))
    one, two,
        three
    """
    return ("\n" + " " * indent).join(textwrap.wrap(", ".join(words), total - indent))
