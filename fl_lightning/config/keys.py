"""Makes the catalogue of keys and parts from the parser and from the signatures of the public classes."""

import inspect
import re
import types
import typing
from argparse import Action
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import yaml
from jsonargparse import ArgumentParser, Namespace

from fl_lightning.config.allow_list import own_classes
from fl_lightning.config.building import make_parser
from fl_lightning.config.catalogue import Argument, Catalogue, Part

_PLAIN = ("builtins", "types", "typing", "pathlib")  # modules whose classes are no parts
_UNIONS: tuple[object, ...] = (typing.Union, types.UnionType, Literal)
_Hint = Any  # a class, a union, an alias of typing, or a value of a Literal


class _Kind(NamedTuple):
    name: str  # of the outermost key at which a part of it can stand
    parts: list[type]


def make_catalogue() -> Catalogue:
    """Return what the parser knows."""
    classes = [part for part in own_classes() if not inspect.isabstract(part) and not _is_protocol(part)]
    arguments = {part: _arguments(part) for part in sorted(classes, key=_path)}
    keys = [action for action in _actions(make_parser()) if action.dest not in ("config", "print_config")]
    kinds: dict[type, _Kind] = {}
    waiting = list(keys)
    for action in waiting:  # which grows, from the outermost keys inwards
        for base in _classes_in(_hint(action)):
            found = [part for part in arguments if _fits(part, base)]
            if found and base not in kinds:
                kinds[base] = _Kind(action.dest.rpartition(".")[2], found)
                waiting += [each for part in found for each in arguments[part]]
    parts = {
        _path(part): Part(
            path=_path(part),
            aliases=tuple(sorted(own_classes()[part] - {_path(part)})),
            kinds=tuple(sorted(set(_kinds_of(part, kinds)))),
            help=_first_sentence(inspect.getdoc(part) or ""),
            arguments=tuple(_described(action, kinds) for action in actions),
        )
        for part, actions in arguments.items()
        if any(part in kind.parts for kind in kinds.values())
    }
    return Catalogue(keys=tuple(_described(action, kinds) for action in keys), parts=parts)


def _kinds_of(part: type, kinds: dict[type, _Kind]) -> Iterator[str]:
    """Yield the kinds of a part: the narrowest, and none of which it is the base of others."""
    bases = [base for base, kind in kinds.items() if part in kind.parts]
    for base in bases:
        is_wider = any(base in other.__mro__[1:] for other in bases)
        if not is_wider and (part is not base or len(kinds[base].parts) == 1):
            yield kinds[base].name


def _path(part: type) -> str:
    """Return the path by which configs name a class: that of the package which offers it."""
    return min(own_classes()[part], key=lambda path: (path.count(".") != 2, path.count("."), path))


def _is_protocol(part: type) -> bool:
    return bool(vars(part).get("_is_protocol"))


def _fits(part: type, base: type) -> bool:
    """Whether a class is a subclass, or has the methods of an abstract base or protocol with the same arguments."""
    if base in part.__mro__ or not (inspect.isabstract(base) or _is_protocol(base)):
        return base in part.__mro__
    methods = [name for name in vars(base) if name == "__call__" or not name.startswith("_")]
    return bool(methods) and all(_parameters(part, name) == _parameters(base, name) for name in methods)


def _parameters(owner: type, method: str) -> list[str] | None:
    found = inspect.getattr_static(owner, method, None)
    return list(inspect.signature(found).parameters) if inspect.isfunction(found) else None


def _arguments(part: type) -> list[Action]:
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_class_arguments(part, fail_untyped=False)
    return _actions(parser)


def _actions(parser: ArgumentParser) -> list[Action]:
    """Return each argument that is not a group of others."""
    actions = [action for action in parser._actions if not action.dest.endswith(".help")]
    groups = {action.dest.rpartition(".")[0] for action in actions}
    return [action for action in actions if action.dest not in groups]


def _hint(action: Action) -> _Hint:
    return vars(action).get("_typehint") or action.type


def _described(action: Action, kinds: dict[type, _Kind]) -> Argument:
    members = _members(_hint(action))
    names = [kinds[base].name for base in _classes_in(_hint(action)) if base in kinds]
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
