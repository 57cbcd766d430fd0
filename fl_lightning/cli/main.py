"""The command ``fl-lightning``, and what its commands share: a parser, and the layout of help texts.

Commands are imported only when they run, so that ``--help`` answers at once.
"""

import argparse
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import NoReturn

from fl_lightning.config.compose import ConfigError, suggestion
from fl_lightning.config.processes import safe_children, watch_parent
from fl_lightning.output import forgiving_output

COMMANDS = {
    "train": "train a federation:  fl-lightning train --config mnist_fedacs.yaml",
    "compare": "compare algorithms over seeds:  fl-lightning compare --config digits.yaml --algorithms all --seeds 0:3",
    "suite": "a frozen list of runs and its leaderboard:  fl-lightning suite real --rounds-factor 0.1",
    "report": "make a page, figures and tables:  fl-lightning report runs/compare_digits",
    "dashboard": "make a W&B workspace of a comparison:  fl-lightning dashboard --project compare_digits",
    "data": "fetch or look at a data set:  fl-lightning data fetch mnist",
    "diagnose": "see which objective each algorithm would optimise:  fl-lightning diagnose --config mnist.yaml",
    "audit": "see what a federation of any framework has optimised:  fl-lightning audit participation.csv",
    "deploy": "make a Flower app of a config:  fl-lightning deploy --config digits_fedacs.yaml --out app",
    "node": "take part in a deployment:  fl-lightning node --superlink HOST:PORT --client 3 --data mine.yaml",
    "figure": "draw a figure of the paper:  fl-lightning figure toy-static",
    "demo": "FedAvg against what is recommended, in a minute:  fl-lightning demo",
    "show": "list the parts of a kind with their arguments:  fl-lightning show sampler",
    "completion": "print a script that completes commands and keys:  fl-lightning completion bash",
}
TRUST = (
    "let configs name classes of this package too, besides fl_lightning, torch, lightning, torchmetrics and "
    "torchvision; importing a package runs its code, so name only what you would run yourself"
)

SYSTEM = (
    "what clients meet: a shipped system (`fl-lightning show systems`) or a file (default: as the config says, paper)"
)


class OneLineParser(argparse.ArgumentParser):
    """Raises what it does not understand, so that the errors of all commands look the same."""

    def error(self, message: str) -> NoReturn:
        """Raise the message, with the option that was probably meant."""
        message = re.sub(r"argument (\S+): expected one argument", r"\1 needs a value", message)
        unknown = next((word.split("=")[0] for word in message.split() if word.startswith("--")), "")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        hint = suggestion(unknown, known) if "unrecognized" in message and unknown not in known else ""
        raise ConfigError(f"{message}{hint} (see {self.prog} --help)")

    def add_json(self) -> None:
        """Add ``--json``."""
        self.add_argument("--json", action="store_true", help="print one JSON document instead (docs/programs.md)")

    def add_system(self) -> None:
        """Add ``--system NAME``."""
        self.add_argument("--system", metavar="NAME", help=SYSTEM)

    def add_trust(self) -> None:
        """Add ``--trust PACKAGE``, which may come several times."""
        self.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=TRUST)


def width() -> int:
    """Return how wide a text may be: as the terminal, 80 without one, never over 120."""
    return max(60, min(120, shutil.get_terminal_size((80, 24)).columns))


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


def print_json(document: Mapping[str, object]) -> None:
    """Print a document for programs; numbers that are not finite are null.

    >>> print_json({"cost": float("nan"), "names": ("a", "b")})
    {"cost": null, "names": ["a", "b"]}
    """
    print(json.dumps(_finite(document), ensure_ascii=False, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _help() -> str:
    lines = "\n".join(f"  {name:<11}{text}" for name, text in COMMANDS.items())
    return f"""usage: fl-lightning COMMAND [options]

Federated learning on PyTorch Lightning for clients that differ in work and in reach.

{lines}

`fl-lightning COMMAND --help` shows its options. Options without a command are those of `train`."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code: 0, or 2 for an error that the user can fix."""
    watch_parent()
    with forgiving_output(), safe_children():
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0
    name = given[0] if not given[0].startswith("-") else "train"
    if name not in COMMANDS:
        return _refuse(f"unknown command {name!r}{suggestion(name, COMMANDS)}: use one of {', '.join(COMMANDS)}")
    rest = given[1:] if given[0] == name else given
    try:
        return int(import_module(f"fl_lightning.cli.{name}").main(rest))
    except KeyboardInterrupt:
        return 130
    except SystemExit as ending:  # of a parser that has shown its help, or of a signal before there is anything to save
        return ending.code if isinstance(ending.code, int) else 0
    except Exception as error:  # in one line: nothing the user sees is a traceback
        if os.environ.get("FL_LIGHTNING_TRACEBACK"):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        known = isinstance(error, (ValueError, OSError, ImportError))
        hint = "" if known else f" ({type(error).__name__}; FL_LIGHTNING_TRACEBACK=1 shows where)"
        return _refuse(text + hint)


def _refuse(text: str) -> int:
    print(f"fl-lightning: error: {text}", file=sys.stderr)
    return 2
