"""The keys of a configuration and the parts that can stand there, as the parser knows them, without torch.

The parser takes seconds to import, and help, completion and the answer to a typo must not wait for it. So the first
command on a machine asks the parser and leaves the answer in the user's cache folder, for all that follow.
"""

import hashlib
import inspect
import json
import os
import re
import sys
import types
import typing
from argparse import Action
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from fl_lightning.output import loading, read_plain, write_durably

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_PACKAGE = Path(__file__).resolve().parent.parent
_OTHERS = ("jsonargparse", "lightning")  # whose versions change the catalogue too
_MAX_BYTES = 5_000_000
_NO_KEYS = ("config", "print_config", "print_shtab")  # jsonargparse adds the last when it parses for the first time
_PLAIN = ("builtins", "types", "typing", "pathlib")  # modules whose classes are no parts
_UNIONS: tuple[object, ...] = (typing.Union, types.UnionType, Literal)
_Hint = Any  # a class, a union, an alias of typing, or a value of a Literal
_Kinds = dict[type, tuple[str, list[type]]]  # by base: the outermost key at which its parts can stand, and these parts


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
        made = make_catalogue()
    with suppress(OSError):  # a folder that cannot be written costs time, no more
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(path, json.dumps({"state": state, "catalogue": asdict(made)}).encode(), mode=0o600)
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
    """Return what was written; of a forged file, a hint may be wrong, but nothing in it is run or shown as it is."""
    if os.name == "posix" and path.stat().st_uid != os.getuid():
        raise ValueError(f"{path} is not a file of this user")
    content = json.loads(read_plain(path, _MAX_BYTES))
    if content["state"] != state:
        raise ValueError(f"{path} is of another state of the package")
    return _decoded(content["catalogue"], Catalogue)


def _decoded(value: Any, wanted: Any) -> Any:
    """Return a value of JSON as a record, tuple, dict, text or truth value of the wanted type."""
    inner = typing.get_args(wanted)
    if isinstance(wanted, type) and is_dataclass(wanted):
        return wanted(**{each.name: _decoded(value[each.name], each.type) for each in fields(wanted)})
    if typing.get_origin(wanted) is tuple:
        return tuple(_decoded(each, inner[0]) for each in value)
    if typing.get_origin(wanted) is dict:
        return {_decoded(key, inner[0]): _decoded(each, inner[1]) for key, each in value.items()}
    if not isinstance(value, wanted) or not str(value).isprintable():
        raise ValueError(f"{value!r} is not a {wanted}")
    return value


def make_catalogue() -> Catalogue:
    """Return what the parser and the signatures of the public classes say, which takes seconds."""
    from fl_lightning.config.allow_list import own_classes
    from fl_lightning.config.parsing import make_parser

    paths = {
        part: min(names, key=lambda path: (path.count(".") != 2, path.count("."), path))  # that of the room first
        for part, names in own_classes().items()
        if not inspect.isabstract(part) and not _is_protocol(part)
    }
    arguments = {part: _arguments(part) for part in sorted(paths, key=paths.__getitem__)}
    keys = [action for action in _actions(make_parser()) if action.dest not in _NO_KEYS]
    kinds: _Kinds = {}
    waiting = list(keys)
    for action in waiting:  # which grows, from the outermost keys inwards
        for base in _classes_in(_hint(action)):
            found = [part for part in arguments if _fits(part, base)]
            if found and base not in kinds:
                kinds[base] = (action.dest.rpartition(".")[2], found)
                waiting += [each for part in found for each in arguments[part]]
    parts = {
        paths[part]: Part(
            path=paths[part],
            aliases=tuple(sorted(own_classes()[part] - {paths[part]})),
            kinds=tuple(sorted(set(_kinds_of(part, kinds)))),
            help=_first_sentence(inspect.getdoc(part) or ""),
            arguments=tuple(_described(action, kinds) for action in actions),
        )
        for part, actions in arguments.items()
        if any(part in found for _, found in kinds.values())
    }
    return Catalogue(keys=tuple(_described(action, kinds) for action in keys), parts=parts)


def _kinds_of(part: type, kinds: _Kinds) -> Iterator[str]:
    """Yield the kinds of a part: the narrowest, and none of which it is the base of others."""
    bases = [base for base, (_, found) in kinds.items() if part in found]
    for base in bases:
        name, found = kinds[base]
        is_wider = any(base in other.__mro__[1:] for other in bases)
        if not is_wider and (part is not base or len(found) == 1):
            yield name


def _is_protocol(part: type) -> bool:
    return bool(vars(part).get("_is_protocol"))


def _fits(part: type, base: type) -> bool:
    """Whether a class is a subclass, or has the methods of a protocol."""
    from fl_lightning.parts.bases import misfit

    return base in part.__mro__ or (_is_protocol(base) and misfit(part, base) is None)


def _arguments(part: type) -> list[Action]:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_class_arguments(part, fail_untyped=False)
    return _actions(parser)


def _actions(parser: "ArgumentParser") -> list[Action]:
    """Return each argument that is not a group of others."""
    actions = [action for action in parser._actions if not action.dest.endswith(".help")]
    groups = {action.dest.rpartition(".")[0] for action in actions}
    return [action for action in actions if action.dest not in groups]


def _hint(action: Action) -> _Hint:
    return vars(action).get("_typehint") or action.type


def _described(action: Action, kinds: _Kinds) -> Argument:
    members = _members(_hint(action))
    names = [kinds[base][0] for base in _classes_in(_hint(action)) if base in kinds]
    return Argument(
        name=action.dest,
        type=_in_words(_hint(action)),
        help=_first_sentence(action.help or ""),
        default=None if action.required else _as_yaml(action.default),
        kind=names[0] if names else "",
        many=bool(names) and not any(inspect.isclass(member) and member in kinds for member in members),
        text=str in members,
        choices=tuple(dict.fromkeys(str(member) for member in members if isinstance(member, (str, int)))),
    )


def _members(hint: _Hint) -> list[_Hint]:
    """Return the members of a union and the values of a Literal, or the type itself."""
    if typing.get_origin(hint) in _UNIONS:
        return [member for each in typing.get_args(hint) for member in _members(each)]
    return [hint]


def _classes_in(hint: _Hint) -> Iterator[type]:
    """Yield the classes in a type that are not plain values; of a callable, what it returns."""
    inner = typing.get_args(hint)
    for each in inner:
        yield from _classes_in(each)
    if not inner and inspect.isclass(hint) and hint.__module__ not in _PLAIN:
        yield hint


def _in_words(hint: _Hint) -> str:
    """Return a type as one would write it, without modules.

    >>> _in_words(int | None), _in_words(list[float] | Literal["size"]), _in_words(tuple[int, ...])
    ('int | None', 'list[float] | size', 'tuple[int, ...]')
    """
    if typing.get_origin(hint) in _UNIONS:
        return " | ".join(dict.fromkeys(map(_in_words, _members(hint))))
    if hint in (None, type(None), ...):
        return "..." if hint is ... else "None"
    name = str(getattr(typing.get_origin(hint) or hint, "__name__", hint))
    inner = [_in_words(each) for each in typing.get_args(hint) if not isinstance(each, list)]
    return f"{name}[{', '.join(inner)}]" if inner else name


def _as_yaml(value: object) -> str:
    from jsonargparse import Namespace

    plain = value.as_dict() if isinstance(value, Namespace) else value
    try:
        return yaml.safe_dump(plain, default_flow_style=True).removesuffix("\n").removesuffix("\n...").strip()
    except yaml.YAMLError:
        return str(value)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, without the marks of code.

    >>> _first_sentence("The ``eta``.  More.")
    'The eta.'
    """
    plain = re.sub(r":\w+:`~?([^`]+)`", r"\1", text.replace("``", ""))
    return " ".join(plain.split()).partition(". ")[0].rstrip(".,") + "."
