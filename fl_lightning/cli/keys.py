"""The keys of a configuration as ``train --help`` lists them.

The parser knows them, but it takes seconds to make, and help must answer at once. So the list is kept in a file, which
``python -m fl_lightning.cli.keys`` writes from the parser; a test compares the two.
"""

import textwrap
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).with_name("train_keys.txt")
_WIDTH, _INDENT = 120, 29
_OPTIONS = ("config", "print_config")  # explained elsewhere in the help


def stored() -> str:
    """Return the list from the file."""
    return FILE.read_text(encoding="utf-8")


def described(arguments: Iterable[tuple[str, str]]) -> str:
    """Return the list from dotted keys and their help: one line each, Fabric's together.

    >>> print(described([("seed", "Of all.  More."), ("fabric.devices", "Long."), ("loop.lr", "The ``eta``.")]), end="")
    keys (--print_config shows the values of all):
      seed                       Of all.
      loop.lr                    The eta.
      fabric.KEY                 devices: as in Lightning's Fabric
    """
    lines, fabric = [], []
    for key, text in arguments:
        if key.startswith("fabric."):
            fabric.append(key.removeprefix("fabric."))
        else:
            lines.append(_line(key, _first_sentence(text)))
    lines.append(_line("fabric.KEY", f"{', '.join(fabric)}: as in Lightning's Fabric"))
    return "\n".join(["keys (--print_config shows the values of all):", *lines, ""])


def _line(key: str, text: str) -> str:
    return textwrap.fill(f"  {key:<{_INDENT - 3}} {text}", _WIDTH, subsequent_indent=" " * _INDENT)


def _first_sentence(text: str) -> str:
    return " ".join(text.replace("``", "").split()).partition(". ")[0].rstrip(".,") + "."


def of_parser() -> list[tuple[str, str]]:
    """Return every key of the parser with its help."""
    from fl_lightning.cli.building import make_parser  # heavy: torch, lightning

    actions = [action for action in make_parser()._actions if not action.dest.endswith(".help")]
    groups = {action.dest.rpartition(".")[0] for action in actions}
    return [(action.dest, action.help or "") for action in actions if action.dest not in (*_OPTIONS, *groups)]


if __name__ == "__main__":
    FILE.write_text(described(of_parser()), encoding="utf-8")
