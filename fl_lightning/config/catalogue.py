"""The keys of a configuration and the parts that can stand there, as the parser knows them, without torch.

The parser takes seconds to import, and help, completion and the answer to a typo must not wait for it. So what it knows
is kept in a file, which ``python -m fl_lightning.config.keys`` writes; a test compares the two.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A key of the configuration, or an argument of a part."""

    name: str  # dotted where it is a key
    type: str  # in words
    help: str = ""
    default: str | None = None  # as YAML; None where it must be given
    kind: str | None = None  # of the parts that can stand there
    many: bool = False  # whether it is a list of parts
    text: bool = False  # whether a text that names no part can stand there too
    choices: tuple[str, ...] = ()  # the values it can have, where they are few


@dataclass(frozen=True, kw_only=True)
class Part:
    """A class that a configuration may name."""

    path: str
    help: str
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """The class without its module."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Everything that can be set."""

    keys: tuple[Argument, ...]
    parts: Mapping[str, Part]  # by path
    kinds: Mapping[str, tuple[str, ...]]  # paths of the parts of a kind
    aliases: Mapping[str, str] = field(default_factory=dict)  # other paths of the same classes

    def part(self, path: str, kind: str | None = None) -> Part | None:
        """Return the part of a dotted path, or of a bare name among those of a kind; None if it is not one of ours."""
        found = self.parts.get(self.aliases.get(path, path))
        if found is None and "." not in path and kind is not None:
            found = next((self.parts[each] for each in self.kinds[kind] if self.parts[each].name == path), None)
        return found

    def where(self, kind: str) -> list[str]:
        """Return the keys at which parts of a kind can stand, also inside another part."""
        at_top = [each.name for each in self.keys if each.kind == kind]
        inner = [
            f"{key.name}.{argument.name}"
            for key in self.keys
            if key.kind is not None and not key.many
            for path in self.kinds[key.kind]
            for argument in self.parts[path].arguments
            if argument.kind == kind
        ]
        return list(dict.fromkeys([*at_top, *inner]))

    def to_json(self) -> str:
        """Return it as the text of the file."""
        content = {
            "keys": [_plain(each) for each in self.keys],
            "kinds": {name: list(paths) for name, paths in self.kinds.items()},
            "aliases": dict(self.aliases),
            "parts": [
                {"path": part.path, "help": part.help, "arguments": [_plain(each) for each in part.arguments]}
                for part in self.parts.values()
            ],
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _plain(argument: Argument) -> dict[str, Any]:
    """Return the fields that say something."""
    return {name: value for name, value in asdict(argument).items() if value not in (None, False, "", ())}


def from_json(text: str) -> Catalogue:
    """Return what :meth:`Catalogue.to_json` wrote."""
    content = json.loads(text)
    parts = [
        Part(path=each["path"], help=each["help"], arguments=tuple(map(_argument, each["arguments"])))
        for each in content["parts"]
    ]
    return Catalogue(
        keys=tuple(map(_argument, content["keys"])),
        parts={part.path: part for part in parts},
        kinds={name: tuple(paths) for name, paths in content["kinds"].items()},
        aliases=content["aliases"],
    )


def _argument(fields: dict[str, Any]) -> Argument:
    return Argument(**{"type": "", **fields, "choices": tuple(fields.get("choices", ()))})


@cache
def stored() -> Catalogue:
    """Return the catalogue from the file."""
    return from_json(FILE.read_text(encoding="utf-8"))
