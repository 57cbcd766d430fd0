"""Compares a configuration with the catalogue before torch is imported, so that a typo is answered at once.

It refuses what cannot be right: a key that nothing has, a class that is not there, a word where a number stands. What
it does not know, such as a class of the user's own, it leaves to the parser.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from fl_lightning.config import catalogue
from fl_lightning.config.catalogue import Argument, Part
from fl_lightning.config.compose import ConfigError, Settings, nearest, suggestion
from fl_lightning.runs import safe_yaml

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_OF_A_CLASS = ("class_path", "dict_kwargs", "help")
_NUMBERS = ("int", "float")


def check(merged: Settings, overrides: Sequence[str], trusted: Sequence[str] = (), options: Sequence[str] = ()) -> None:
    """Raise ConfigError, with what was probably meant, if a configuration names what is not there.

    Classes of trusted packages may be named besides the known ones; the command's own options may have been meant too.
    """
    checker = _Checker(trusted, options)
    checker.table(merged)
    for key, text in settings(overrides):
        checker.override(key, text)


def settings(overrides: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield key and value of each argument ``--KEY VALUE`` or ``--KEY=VALUE``; None where there is no value.

    >>> list(settings(["--loop.lr", "-1", "--seed=3", "--print_config"]))
    [('loop.lr', '-1'), ('seed', '3'), ('print_config', None)]
    """
    waiting = list(overrides)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} is not understood: settings are given as --loop.rounds 10")
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals and waiting and not waiting[0].startswith("--"):
            yield key, waiting.pop(0)
        else:
            yield key, value if equals else None


class _Checker:
    """Remembers which class stands at which key."""

    def __init__(self, trusted: Sequence[str], options: Sequence[str]) -> None:
        self._catalogue = catalogue.stored()
        self._keys = {each.name: each for each in self._catalogue.keys}
        self._tables = {name.rpartition(".")[0] for name in self._keys if "." in name}
        self._trusted = tuple(f"{package}." for package in trusted)
        self._options = options
        self._classes: dict[str, str] = {}

    def table(self, tree: Settings, prefix: str = "") -> None:
        """Check a table of keys that is not inside a part."""
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if key in self._keys:
                self._value(self._keys[key], key, value)
            elif key not in self._tables:
                raise self._unknown(key)
            elif isinstance(value, dict):
                self.table(value, f"{key}.")

    def override(self, key: str, text: str | None) -> None:
        """Check an argument of the command line; its key may lead into parts."""
        words = [word for word in key.removesuffix("+").split(".") if word != "init_args"]
        starts = [".".join(words[:length]) for length in range(len(words), 0, -1)]
        name = next((start for start in starts if start in self._keys), "")
        if words[-1:] == ["help"] or (not name and key in self._tables):
            return
        if not name:
            raise self._unknown(key, "--")
        argument = self._keys[name]
        for word in words[name.count(".") + 1 :]:
            part = self._part_at(argument, name)
            if part is None or argument.many or word in _OF_A_CLASS:
                return
            argument = self._argument(part, name, word)
            name = f"{name}.{word}"
        if text is None:
            raise ConfigError(f"--{key} needs a value")
        with suppress(safe_yaml.UnsafeYamlError):  # a text of another kind
            self._value(argument, name, safe_yaml.load(text, f"--{key}"))

    def _value(self, argument: Argument, key: str, value: object) -> None:
        """Check what stands at a key."""
        if not argument.kind:
            self._plain(argument, key, value)
            return
        for each in value if isinstance(value, list) else [value]:
            path = each.get("class_path") if isinstance(each, dict) else each
            if isinstance(path, str) and _DOTTED.fullmatch(path):
                self._class(argument, key, path)
            part = self._part_at(argument, key)
            given = each.get("init_args") if isinstance(each, dict) else None
            if part is not None and isinstance(given, dict):
                for name, inner in given.items():
                    self._value(self._argument(part, key, str(name)), f"{key}.{name}", inner)

    def _class(self, argument: Argument, key: str, path: str) -> None:
        """Check the name of a class, and remember it."""
        kind = argument.kind
        self._classes[key] = path
        if self._catalogue.part(path, kind) is not None or path.startswith(self._trusted):
            return
        names = {part.name: part.path for part in self._catalogue.of_kind(kind)}
        meant = nearest(path.rpartition(".")[2], names)
        hint = "" if meant is None else f" (did you mean {names[meant]}?)"
        command = f"`fl-lightning show {kind}` shows"
        if path.startswith("fl_lightning."):
            text = f"{path} is not on the list of what a config may name"
            raise ConfigError(f"{key}: {text}{hint}: {command} what can stand there")
        if "." not in path and hint and not argument.text and not self._trusted:
            raise ConfigError(f"{key}: there is no {kind} {path}{hint}: {command} all")

    def _part_at(self, argument: Argument, key: str) -> Part | None:
        return self._catalogue.part(self._classes.get(key, ""), argument.kind)

    def _argument(self, part: Part, key: str, name: str) -> Argument:
        found = {each.name: each for each in part.arguments}
        if name not in found:
            takes = f"it takes {', '.join(found)}" if found else "it takes none"
            raise ConfigError(f"{key}: {part.name} has no argument {name[:60]!r}{suggestion(name, found)}: {takes}")
        return found[name]

    def _plain(self, argument: Argument, key: str, value: object) -> None:
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

    def _unknown(self, key: str, dashes: str = "") -> ConfigError:
        """Return what to say of a key that nothing has; one without its first word may be meant as well."""
        meant = {name.rpartition(".")[2]: name for name in self._keys}
        whole = [*self._keys, *sorted(self._tables), *self._options]
        found = nearest(key, whole) or meant.get(nearest(key, meant) or "")
        hint = "" if found is None else f" (did you mean {dashes}{found}?)"
        return ConfigError(f"unknown key {dashes}{key[:100]}{hint}: `train --help` lists the keys".replace("\n", " "))


def _is_number(text: str) -> bool:
    try:
        float(safe_yaml.load(text, "a number"))
    except (ValueError, TypeError, OverflowError):
        return text.lstrip("+-.").lower() in ("nan", "inf", "infinity")
    return True
