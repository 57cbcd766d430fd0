"""``fl-lightning completion``: a script that lets a shell complete commands, options, keys and names of configs."""

import argparse
import importlib

from fl_lightning.cli.main import COMMANDS, OneLineParser
from fl_lightning.config import catalogue
from fl_lightning.config import compose as configs
from fl_lightning.output import not_installed


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning completion", description=__doc__)
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that is to complete")
    return parser


def main(arguments: list[str]) -> int:
    """Print the script of a shell."""
    shell = make_parser().parse_args(arguments).shell
    try:
        import shtab
    except ModuleNotFoundError:
        raise ImportError(not_installed("shtab", "completion")) from None
    print(shtab.complete(whole_parser(), shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser that knows every command with its options; it is read by the completion alone."""
    known = catalogue.stored()
    parser = argparse.ArgumentParser(prog="fl-lightning")
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        made = importlib.import_module(f"fl_lightning.cli.{name}").make_parser()
        command = commands.add_parser(name, help=text.partition(":")[0], parents=[made], add_help=False)
        for action in command._actions:
            if action.choices is None:  # it takes any text: offer what it probably is one of
                action.choices = _offered(name, action.dest)
        if name in ("train", "compare", "diagnose", "demo"):  # the keys of a config, with what can stand there
            taken = set(command._option_string_actions)
            for argument in known.keys:
                values = [*known.kinds.get(argument.kind, ()), *argument.choices]
                if f"--{argument.name}" not in taken:
                    command.add_argument(f"--{argument.name}", choices=values or None)
    return parser


def _offered(command: str, argument: str) -> list[str] | None:
    if (command, argument) == ("show", "name"):
        return [*catalogue.stored().kinds, "systems"]
    if (command, argument) == ("train", "resume"):
        return ["auto", "never"]
    if argument == "system":
        return configs.names("systems")
    if argument != "config":
        return None
    algorithms = [f"_{name}" for name in configs.names("algorithms")] if command == "train" else [""]
    return [f"{data}{algorithm}.yaml" for data in configs.names("data") for algorithm in algorithms]
