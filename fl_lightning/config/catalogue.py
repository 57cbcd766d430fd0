"""The keys of a configuration and the parts that can stand there, as the parser knows them, without torch.

The parser takes seconds to import, and help, completion and the answer to a typo must not wait for it. So the first
command on a machine asks the parser and leaves the answer in the user's cache folder, for all that follow.
"""

import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_origin

from fl_lightning.output import loading

_PACKAGE = Path(__file__).resolve().parent.parent
_OTHERS = ("jsonargparse", "lightning")  # whose versions change the catalogue too
_MAX_BYTES = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A key of the configuration, or an argument of a part."""

    name: str  # dotted where it is a key
    type: str  # in words
    help: str
    default: str | None  # as YAML; None where it must be given
    kind: str  # of the parts that can stand there; empty where none can
    many: bool  # whether a list of them stands there
    text: bool  # whether a text that names no part can stand there too
    choices: tuple[str, ...]  # the values it can have, where they are few


@dataclass(frozen=True, kw_only=True)
class Part:
    """A class that a configuration may name."""

    path: str
    aliases: tuple[str, ...]  # other paths of the same class
    kinds: tuple[str, ...]  # each named after a key at which the part can stand
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
    parts: dict[str, Part]  # by path

    @cached_property
    def kinds(self) -> dict[str, list[str]]:
        """The paths of the parts of each kind."""
        kinds = sorted({kind for part in self.parts.values() for kind in part.kinds})
        return {kind: [path for path, part in self.parts.items() if kind in part.kinds] for kind in kinds}

    def of_kind(self, kind: str) -> list[Part]:
        """Return the parts of a kind."""
        return [self.parts[path] for path in self.kinds.get(kind, ())]

    def part(self, name: str, kind: str = "") -> Part | None:
        """Return the part of a dotted path, or of a bare name among those of a kind; None if it is not one of ours."""
        found = self.of_kind(kind) if "." not in name else self.parts.values()
        return next((part for part in found if name in (part.name, part.path, *part.aliases)), None)

    def where(self, kind: str) -> list[str]:
        """Return the keys at which parts of a kind can stand, also inside another part."""
        inner = [
            f"{key.name}.{argument.name}"
            for key in self.keys
            if not key.many
            for part in self.of_kind(key.kind)
            for argument in part.arguments
            if argument.kind == kind
        ]
        return list(dict.fromkeys([*(key.name for key in self.keys if key.kind == kind), *inner]))


@cache
def stored() -> Catalogue:
    """Return the catalogue from the cache, or make it where there is none of the package as it is now."""
    path = _cached_file()
    state = _state_of_package()
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _read(path, state)
    with loading():
        from fl_lightning.config.keys import make_catalogue

        made = make_catalogue()
    with suppress(OSError):  # a folder that cannot be written costs time, no more
        _write(path, json.dumps({"state": state, "catalogue": asdict(made)}))
    return made


def _cached_file() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    return Path(folder, "fl_lightning", f"catalogue_{_digest([str(_PACKAGE), sys.prefix])}.json")


def _state_of_package() -> str:
    """Return a digest of the names, sizes and times of all files that have a say in the catalogue."""
    found = [spec.origin for name in _OTHERS if (spec := find_spec(name)) and spec.origin]
    for folder, _, names in os.walk(_PACKAGE, followlinks=True):
        found += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    states = [(path, os.lstat(path)) for path in sorted(found)]
    return _digest([sys.version, *(f"{path} {each.st_size} {each.st_mtime_ns}" for path, each in states)])


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _read(path: Path, state: str) -> Catalogue:
    """Return what was written; of a forged file, a hint may be wrong, but nothing in it is run or shown as it is.

    Raises:
        ValueError: If it was written by somebody else or for another state of the package, or is damaged.
    """
    found = path.stat()
    is_own = os.name != "posix" or found.st_uid == os.getuid()
    if not is_own or not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
        raise ValueError(f"{path} is not a small file of this user")
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["state"] != state:
        raise ValueError(f"{path} is of another state of the package")
    made: Catalogue = _decoded(content["catalogue"], Catalogue)
    return made


def _decoded(value: Any, wanted: Any) -> Any:
    """Return a value of JSON as a record, tuple, dict, text or truth value of the wanted type."""
    inner = get_args(wanted)
    if isinstance(wanted, type) and is_dataclass(wanted):
        return wanted(**{each.name: _decoded(value[each.name], each.type) for each in fields(wanted)})
    if get_origin(wanted) is tuple:
        return tuple(_decoded(each, inner[0]) for each in value)
    if get_origin(wanted) is dict:
        return {_decoded(key, inner[0]): _decoded(each, inner[1]) for key, each in value.items()}
    if not isinstance(value, wanted) or not str(value).isprintable():
        raise ValueError(f"{value!r} is not a {wanted}")
    return value


def _write(path: Path, text: str) -> None:
    """Write a file that only this user can read and that is complete whenever it is there."""
    from tempfile import NamedTemporaryFile

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
