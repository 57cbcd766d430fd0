"""Makes the catalogue of keys and parts from the parser; ``python -m fl_lightning.config.keys`` writes its file."""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser

from fl_lightning.config.allow_list import own_classes
from fl_lightning.config.building import make_parser
from fl_lightning.config.catalogue import FILE, Argument, Catalogue, Part

_Given = tuple[str, Any, str, Any]  # dotted key, type, help and default
_OPTIONS = ("config", "print_config")  # of the command, not of the configuration


def make_catalogue() -> Catalogue:
    """Return what the parser knows."""
    classes = {_path(part): part for part in own_classes() if not inspect.isabstract(part) and not _is_protocol(part)}
    arguments = {path: list(_arguments(part)) for path, part in classes.items()}
    keys = list(_actions(make_parser()))
    bases = _bases(keys, classes, arguments)
    parts = {
        path: Part(
            path=path,
            help=first_sentence(inspect.getdoc(part) or ""),
            arguments=tuple(_described(each, bases) for each in arguments[path]),
        )
        for path, part in sorted(classes.items())
        if any(_fits(part, base) for base in bases)
    }
    return Catalogue(
        keys=tuple(_described(each, bases) for each in keys),
        parts=parts,
        kinds={word: _of_kind(base, bases, classes) for base, word in sorted(bases.items(), key=lambda each: each[1])},
        aliases={
            alias: _path(part)
            for part, paths in sorted(own_classes().items(), key=lambda pair: _path(pair[0]))
            for alias in sorted(paths)
            if _path(part) in parts and alias != _path(part)
        },
    )


def _bases(keys: Sequence[_Given], classes: dict[str, type], arguments: dict[str, list[_Given]]) -> dict[type, str]:
    """Return the types at which a part of ours can stand, named after the key, from the outermost keys inwards."""
    bases: dict[type, str] = {}
    waiting = list(keys)
    while waiting:
        name, hint, *_ = waiting.pop(0)
        for base in _classes_in(hint):
            found = [path for path, part in classes.items() if _fits(part, base)]
            if base not in bases and found:
                bases[base] = name.rpartition(".")[2]
                waiting += [each for path in found for each in arguments[path]]
    return bases


def _of_kind(base: type, bases: dict[type, str], classes: dict[str, type]) -> tuple[str, ...]:
    """Return the parts of a kind, without its base if others are there, and without those of a narrower kind."""
    narrower = [other for other in bases if other is not base and base in other.__mro__]
    found = {
        path: part
        for path, part in sorted(classes.items())
        if _fits(part, base) and not any(other in part.__mro__ for other in narrower)
    }
    return tuple(path for path, part in found.items() if part is not base or len(found) == 1)


def _path(part: type) -> str:
    """Return the path by which configs name a class: that of the package which offers it."""
    return min(own_classes()[part], key=lambda path: (path.count(".") != 2, path.count("."), path))


def _is_protocol(part: Any) -> bool:
    return bool(getattr(part, "_is_protocol", False))


def _fits(part: type, base: type) -> bool:
    """Whether a class is a subclass, or has the methods of a base or protocol with the same arguments."""
    if base in part.__mro__:
        return True
    methods = [(name, each) for name, each in vars(base).items() if inspect.isfunction(each)]
    wanted = [(name, each) for name, each in methods if name == "__call__" or not name.startswith("_")]
    if not wanted or base.__module__.partition(".")[0] != "fl_lightning":
        return False
    return all(
        inspect.isfunction(found := getattr(part, name, None))
        and list(inspect.signature(found).parameters) == list(inspect.signature(each).parameters)
        for name, each in wanted
    )


def _arguments(part: type) -> Iterator[_Given]:
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_class_arguments(part, "part", fail_untyped=False)
    for name, *rest in _actions(parser):
        yield name.removeprefix("part."), *rest


def _actions(parser: ArgumentParser) -> Iterator[_Given]:
    """Yield dotted key, type, help and default of each argument."""
    actions = [action for action in parser._actions if not action.dest.endswith(".help")]
    groups = {action.dest.rpartition(".")[0] for action in actions}
    for action in actions:
        if action.dest not in (*_OPTIONS, *groups):
            hint = getattr(action, "_typehint", None) or action.type
            yield action.dest, hint, action.help or "", inspect.Parameter.empty if action.required else action.default


def _described(each: _Given, bases: dict[type, str]) -> Argument:
    name, hint, text, default = each
    kinds = [bases[base] for base in _classes_in(hint) if base in bases]
    members = list(_members(hint))
    return Argument(
        name=name,
        type=_in_words(hint),
        help=first_sentence(text),
        default=None if default is inspect.Parameter.empty else _as_yaml(default),
        kind=kinds[0] if kinds else None,
        many=bool(kinds) and not any(inspect.isclass(member) and member in bases for member in members),
        text=str in members,
        choices=tuple(
            str(value)
            for member in members
            if typing.get_origin(member) is Literal
            for value in typing.get_args(member)
        ),
    )


def _members(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes in a type that are not plain values; of a callable, what it returns."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return
    for each in arguments:
        yield from _classes_in(each)
    if not arguments and inspect.isclass(hint) and hint.__module__ not in ("builtins", "types", "typing", "pathlib"):
        yield hint


def _in_words(hint: Any) -> str:
    """Return a type as one would write it, without modules.

    >>> _in_words(int | None), _in_words(list[float] | Literal["size"])
    ('int | None', 'list[float] | size')
    """
    if hint is None or hint is type(None):
        return "None"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_in_words(each) for each in arguments))
    if origin is Literal:
        return " | ".join(map(str, arguments))
    name = getattr(origin or hint, "__name__", str(hint))
    if not arguments:
        return name
    inner = [_in_words(each) if each is not Ellipsis else "..." for each in arguments if not isinstance(each, list)]
    return f"{name}[{', '.join(inner)}]"


def _as_yaml(value: Any) -> str:
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    try:
        return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...").strip()
    except yaml.YAMLError:
        return str(value)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without the marks of code.

    >>> first_sentence("The ``eta``.  More.")
    'The eta.'
    """
    plain = re.sub(r":\w+:`~?([^`]+)`", r"\1", text.replace("``", ""))
    return " ".join(plain.split()).partition(". ")[0].rstrip(".,") + "."


if __name__ == "__main__":
    FILE.write_text(make_catalogue().to_json(), encoding="utf-8")
