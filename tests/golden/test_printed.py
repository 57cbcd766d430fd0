"""What a user types and reads stays: the printed config of every shipped file, and every help text.

``python tests/golden/test_printed.py`` stores them anew; a commit that does so says in one line what changed for users.
"""

import contextlib
import difflib
import io
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml

from fl_lightning.cli.main import COMMANDS as KNOWN
from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs

CONFIGS = Path(__file__).with_name("configs.yaml")  # that of digits_fedavg, and what differs from it in the others
HELPS = Path(__file__).with_name("helps.txt")
BASE = "digits_fedavg"
LOADER = vars(yaml).get("CSafeLoader", yaml.SafeLoader)  # several times faster
DUMPER = vars(yaml).get("CSafeDumper", yaml.SafeDumper)
NAMES = [
    *(f"digits_{name}" for name in configs.names("algorithms") if name != "fedavg"),
    *(f"{data}_{name}" for data in configs.names("data") if data != "digits" for name in ("fedavg", "limitedfedacs")),
    "digits observed",
]
COMMANDS = [
    "",
    "train",
    "compare",
    "report",
    "diagnose",
    "demo",
    "figure",
    "show",
    "dashboard",
    "deploy",
    "node",
    "suite",
]
COMMANDS += ["audit", "completion", "data", "data fetch", "data show", "data trace"]


def printed(name: str) -> dict[str, object]:
    """Return the settings that ``--print_config`` shows, each by its dotted key."""
    files = [word for file in name.split() for word in ("--config", f"{file}.yaml")]
    return dict(flattened(yaml.load(shown("train", *files, "--print_config"), Loader=LOADER)))


def flattened(table: dict, path: str = ""):
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def changes(name: str, base: dict[str, object]) -> dict[str, object]:
    """Return the settings of a config that differ from those of the base; what it has not is ``absent``."""
    found = printed(name)
    gone = dict.fromkeys(base.keys() - found.keys(), "absent")
    new = {key: value for key, value in found.items() if key not in base or base[key] != value}
    return dict(sorted((gone | new).items()))


def shown(*words: str) -> str:
    """Return what a command prints in a terminal of 100 columns."""
    text = io.StringIO()
    with mock.patch.dict("os.environ", COLUMNS="100"), contextlib.redirect_stdout(text):
        code = main([*words])
    assert code == 0
    return text.getvalue().rstrip()


def words(text: str) -> list[str]:
    """Return a text without what versions of Python differ in: breaks, ``--a N, --b N`` and ``--a, --b N``."""
    return re.sub(r"(--[\w-]+) [A-Z]+, (?=--)", r"\1, ", text).split()


def check(stored: str, found: str) -> None:
    if words(stored) != words(found):
        lines = difflib.unified_diff(stored.splitlines(), found.splitlines(), "stored", "found", lineterm="", n=1)
        hint = "users see another text now; where that is meant: python tests/golden/test_printed.py"
        pytest.fail("\n".join([hint, *lines]), pytrace=False)


def text_of(settings: dict[str, object]) -> str:
    return yaml.dump(settings, Dumper=DUMPER, width=10_000, default_flow_style=False)


def test_printed_configs_are_what_they_were():
    base = printed(BASE)
    check(CONFIGS.read_text(), text_of({BASE: base} | {name: changes(name, base) for name in NAMES}))


@pytest.mark.parametrize("command", COMMANDS)
def test_helps_are_what_they_were(command):
    stored = dict(part.split("\n", 1) for part in HELPS.read_text().split("\n==== ")[1:])
    check(stored[f"fl-lightning {command}".strip()], shown(*command.split(), "--help"))


def test_every_command_has_its_help_here():
    assert {command.split()[0] for command in COMMANDS if command} == set(KNOWN)


def store() -> None:
    base = printed(BASE)
    CONFIGS.write_text(text_of({BASE: base} | {name: changes(name, base) for name in NAMES}))
    headed = {f"==== fl-lightning {command}".rstrip(): shown(*command.split(), "--help") for command in COMMANDS}
    HELPS.write_text("".join(f"\n{head}\n{text}" for head, text in headed.items()) + "\n")


if __name__ == "__main__":
    sys.exit(store())
