"""The command ``fl-lightning``. Commands are imported only when they run, so that ``--help`` answers at once."""

import os
import sys
from collections.abc import Callable
from importlib import import_module

from fl_lightning.config.compose import suggestion
from fl_lightning.config.processes import Interrupted, safe_children, watch_parent
from fl_lightning.output import forgiving_output

COMMANDS = {
    "train": "train a federation:  fl-lightning train --config mnist_fedacs.yaml",
    "compare": "compare algorithms over seeds:  fl-lightning compare --config digits.yaml --algorithms all --seeds 0:3",
    "report": "make a page, figures and tables:  fl-lightning report runs/compare_digits",
    "dashboard": "make a W&B workspace of a comparison:  fl-lightning dashboard --project compare_digits",
    "data": "fetch or look at a data set:  fl-lightning data fetch mnist",
    "diagnose": "see which objective each algorithm would optimise:  fl-lightning diagnose --config mnist.yaml",
    "deploy": "make a Flower app of a config:  fl-lightning deploy --config digits_fedacs.yaml --out app",
    "node": "be a client of a deployed one:  fl-lightning node --superlink HOST:PORT --client 3 --data mine.yaml",
    "figure": "draw a figure of the paper:  fl-lightning figure toy-static",
    "demo": "FedAvg against FedACS in a minute:  fl-lightning demo",
    "show": "list the parts of a kind with their arguments:  fl-lightning show sampler",
    "completion": "print a script that completes commands and keys:  fl-lightning completion bash",
}


def _help() -> str:
    lines = [f"  {name:<11}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fl-lightning COMMAND [options]",
            "",
            "Federated learning on PyTorch Lightning for clients that differ in work and in reach.",
            "",
            *lines,
            "",
            "`fl-lightning COMMAND --help` tells more. Options without a command are those of `train`.",
        ]
    )


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
    return _guarded(lambda: import_module(f"fl_lightning.cli.{name}").main(rest))


def _guarded(command: Callable[[], int]) -> int:
    """Turn what a user can fix into one line; nothing the user sees is a traceback."""
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    except Interrupted as interruption:
        return interruption.exit_code
    except SystemExit as ending:  # of a parser that has shown its help
        return ending.code if isinstance(ending.code, int) else 0
    except Exception as error:
        if os.environ.get("FL_LIGHTNING_TRACEBACK"):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        known = isinstance(error, (ValueError, OSError, ImportError))
        hint = "" if known else f" ({type(error).__name__}; FL_LIGHTNING_TRACEBACK=1 shows where)"
        return _refuse(text + hint)


def _refuse(text: str) -> int:
    print(f"fl-lightning: error: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
