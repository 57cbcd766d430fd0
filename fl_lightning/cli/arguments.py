"""An argument parser whose errors are one line, the options that several commands have, and the layout of help texts.

Imports nothing heavy.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable
from typing import NoReturn

from fl_lightning.config.compose import ConfigError, suggestion

TRUST = (
    "let configs name classes of this package too, besides fl_lightning, torch, lightning, torchmetrics and "
    "torchvision; importing a package runs its code, so name only what you would run yourself"
)
_NARROW = 60
_WIDE = 120


class OneLineParser(argparse.ArgumentParser):
    """Raises what it does not understand, so that the errors of all commands look the same."""

    def error(self, message: str) -> NoReturn:
        """Raise the message, with the option that was probably meant."""
        message = re.sub(r"argument (\S+): expected one argument", r"\1 needs a value", message)
        unknown = next((word.split("=")[0] for word in message.split() if word.startswith("--")), "")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        hint = suggestion(unknown, known) if "unrecognized" in message and unknown not in known else ""
        raise ConfigError(f"{message}{hint} (see {self.prog} --help)")

    def add_trust(self) -> None:
        """Add ``--trust PACKAGE``, which may come several times."""
        self.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=TRUST)


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
