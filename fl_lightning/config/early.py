"""Compares a configuration with the catalogue before torch is imported, so that a typo is answered at once.

It refuses what cannot be right: a key that nothing has, a class that is not there, a word where a number stands. What
it does not know, such as a class of the user's own, it leaves to the parser.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from fl_lightning.config import catalogue
from fl_lightning.config.catalogue import Argument, Part
from fl_lightning.config.compose import ConfigError
from fl_lightning.config.nearest import nearest, suggestion
from fl_lightning.runs import safe_yaml

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_OF_A_CLASS = ("class_path", "init_args", "dict_kwargs", "help")
_NUMBERS = ("int", "float")


def check(
    merged: dict[str, Any], overrides: Sequence[str], trusted: Sequence[str] = (), options: Sequence[str] = ()
) -> None:
    """Refuse a configuration that names what is not there.

    Args:
        merged: The config.
        overrides: Arguments of the command line.
        trusted: Packages whose classes may be named besides the known ones.
        options: Of the command itself, which may have been meant too.

    Raises:
        ConfigError: With the name that was probably meant.
    """
    checker = _Checker(trusted, options)
    checker.table(merged)
    for key, value in settings(overrides):
        checker.override(key, value)


def settings(overrides: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield key and value of each argument ``--KEY VALUE`` or ``--KEY=VALUE``; None where there is no value.

    >>> list(settings(["--loop.lr", "-1", "--seed=3", "--print_config"]))
    [('loop.lr', '-1'), ('seed', '3'), ('print_config', None)]
    """
    waiting: str | None = None
    for word in overrides:
        if word.startswith("--"):
            if waiting is not None:
                yield waiting, None
            key, equals, value = word.removeprefix("--").partition("=")
            waiting = None if equals else key
            if equals:
                yield key, value
        elif waiting is not None:
            yield waiting, word
            waiting = None
        else:
            raise ConfigError(f"{word!r} is not understood: settings are given as --loop.rounds 10")
    if waiting is not None:
        yield waiting, None


class _Checker:
    """Remembers which class stands at which key."""

    def __init__(self, trusted: Sequence[str], options: Sequence[str]) -> None:
        self._catalogue = catalogue.stored()
        self._keys = {each.name: each for each in self._catalogue.keys}
        self._trusted, self._options = tuple(trusted), tuple(options)
        self._classes: dict[str, str] = {}

    def table(self, tree: dict[str, Any], prefix: str = "") -> None:
        """Check a table of keys that is not inside a part."""
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if key in self._keys:
                self.value(self._keys[key], key, value)
            elif not self._is_table(key):
                raise self._unknown(key)
            elif isinstance(value, dict):
                self.table(value, f"{key}.")

    def override(self, key: str, text: str | None) -> None:
        """Check an argument of the command line."""
        words = key.removesuffix("+").split(".")
        if words[-1] == "help":
            return
        top = next((n for n in range(len(words), 0, -1) if ".".join(words[:n]) in self._keys), 0)
        if not top:
            if not self._is_table(key):
                raise self._unknown(key, option=True)
            return
        name = ".".join(words[:top])
        argument = self._descend(self._keys[name], name, words[top:])
        if argument is None:
            return
        if text is None:
            raise ConfigError(f"--{key} needs a value")
        try:
            value = safe_yaml.load(text, f"--{key}")
        except safe_yaml.UnsafeYamlError:
            return  # a text of another kind
        is_one = argument.many and not isinstance(value, list)
        self.value(argument, key.removesuffix("+"), [value] if is_one else value)

    def value(self, argument: Argument, key: str, value: Any) -> None:
        """Check what stands at a key."""
        if argument.kind is None:
            self._plain(argument, key, value)
        elif argument.many:
            for each in value if isinstance(value, list) else ():
                self._part(argument, key, each)
        else:
            self._part(argument, key, value)

    def _part(self, argument: Argument, key: str, value: Any) -> None:
        path = value.get("class_path") if isinstance(value, dict) else value
        if isinstance(path, str) and _DOTTED.fullmatch(path):
            self._class(argument, key, path)
        given = value.get("init_args") if isinstance(value, dict) else None
        part = self._part_at(argument, key)
        if isinstance(given, dict) and part is not None:
            for name, inner in given.items():
                self.value(self._argument(part, key, str(name)), f"{key}.{name}", inner)

    def _class(self, argument: Argument, key: str, path: str) -> None:
        """Check the name of a class, and remember it."""
        kind = argument.kind or ""
        self._classes[key] = path
        if self._catalogue.part(path, kind) is not None or path.startswith(tuple(f"{one}." for one in self._trusted)):
            return
        names = {each.rpartition(".")[2]: each for each in self._catalogue.kinds[kind]}
        meant = nearest(path.rpartition(".")[2], names)
        hint = "" if meant is None else f" (did you mean {names[meant]}?)"
        if path.startswith("fl_lightning."):
            raise ConfigError(
                f"{key}: {path} is not on the list of what a config may name{hint}: "
                f"`fl-lightning show {kind}` shows what can stand there"
            )
        if "." not in path and hint and not argument.text and not self._trusted:
            raise ConfigError(f"{key}: there is no {kind} {path}{hint}: `fl-lightning show {kind}` shows all")

    def _descend(self, argument: Argument, key: str, words: Sequence[str]) -> Argument | None:
        """Return the argument that a path inside a part leads to; None where that cannot be told."""
        words = [word for word in words if word != "init_args"]
        for word in words:
            part = self._part_at(argument, key)
            if part is None or argument.many or word in _OF_A_CLASS:
                return None
            argument, key = self._argument(part, key, word), f"{key}.{word}"
        return argument

    def _part_at(self, argument: Argument, key: str) -> Part | None:
        path = self._classes.get(key)
        return None if path is None or argument.kind is None else self._catalogue.part(path, argument.kind)

    def _argument(self, part: Part, key: str, name: str) -> Argument:
        found = {each.name: each for each in part.arguments}
        if name not in found:
            takes = f"it takes {', '.join(found)}" if found else "it takes none"
            raise ConfigError(f"{key}: {part.name} has no argument {name[:60]!r}{suggestion(name, found)}: {takes}")
        return found[name]

    def _plain(self, argument: Argument, key: str, value: Any) -> None:
        """Refuse a word where there is a number, and one that is none of a few."""
        kinds = argument.type.split(" | ")
        if not isinstance(value, str) or value.lower() in ("", "null", "none") or argument.text:
            return
        if argument.choices and not any(kind in (*_NUMBERS, "bool") or "[" in kind for kind in kinds):
            if value not in argument.choices:
                wanted = ", ".join(argument.choices)
                raise ConfigError(f"{key}={value[:60]!r} is unknown{suggestion(value, argument.choices)}: use {wanted}")
        elif set(kinds) <= {*_NUMBERS, "None"} and not _is_number(value):
            raise ConfigError(f"{key}={value[:60]!r} must be a number ({argument.type})")

    def _is_table(self, key: str) -> bool:
        return any(name.startswith(f"{key}.") for name in self._keys)

    def _unknown(self, key: str, option: bool = False) -> ConfigError:
        """Return what to say of a key that nothing has; one without its first word may be meant as well."""
        tables = {name.rpartition(".")[0] for name in self._keys if "." in name}
        meant = {name: name for name in (*self._keys, *tables, *self._options)}
        short = {name.rpartition(".")[2]: name for name in self._keys}
        found = nearest(key, meant) or nearest(key, short)
        hint = "" if found is None else f" (did you mean {'--' * option}{(short | meant)[found]}?)"
        return ConfigError(
            f"unknown key {'--' * option}{key[:100]}{hint}: `train --help` lists the keys".replace("\n", " ")
        )


def _is_number(text: str) -> bool:
    try:
        float(yaml.safe_load(text))
    except (ValueError, TypeError, OverflowError, yaml.YAMLError, RecursionError):
        return text.lstrip("+-.").lower() in ("nan", "inf", "infinity")
    return True
