"""The one reader for YAML that this package did not write itself: bounded, and without a way to run code."""

from argparse import Namespace
from collections.abc import Hashable, Iterator
from typing import Any, NoReturn

import yaml

MAX_BYTES = 300_000
_MAX_VALUES = 100_000
_MAX_TEXT = 100_000  # characters of one value


class UnsafeYamlError(ValueError):
    """A text that is not YAML, or that is refused; its message names the text."""


class _Loader(yaml.SafeLoader):
    """Refuses what YAML would take silently or what could grow without bound: repeated keys, merge keys, binary."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _refusal("merge keys (<<) are not supported: write the keys out", key_node)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refusal("a key must be a plain value", key_node)
            if key in seen:
                raise _refusal(f"key {key!r} stands twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def _refuse(self, node: yaml.Node) -> NoReturn:
        raise _refusal(f"{node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported: use plain values", node)


def _refusal(text: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


for _tag in ("binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader._refuse)


def load(text: str, origin: str) -> Any:
    """Return the content of a text, unless it is too large, unfolds to too many values, or uses what is not supported.

    >>> load("a: {b: [1, 2]}", "an example")
    {'a': {'b': [1, 2]}}
    >>> load("a: !!binary aGk=", "an example")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fl_lightning.runs.safe_yaml.UnsafeYamlError: an example is not valid YAML: !!binary is not supported: use plain ...
    """
    if len(text) > MAX_BYTES:
        raise UnsafeYamlError(f"{origin} has {len(text):,} characters, at most {MAX_BYTES:,} are read")
    try:
        loaded = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnsafeYamlError(f"{origin} is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if _has_more_values_than(_MAX_VALUES, loaded):
        raise UnsafeYamlError(f"{origin} has over {_MAX_VALUES:,} values, or refers to itself")
    return loaded


def refuse_aliases(text: str) -> None:
    """Refuse a long text, or one with aliases: a few lines of them stand for more values than any memory holds.

    The parser reads texts as YAML, and texts within texts; an alias may hide behind an escaped character.
    """
    if len(text) > _MAX_TEXT:
        raise UnsafeYamlError(f"a text has {len(text):,} characters, at most {_MAX_TEXT:,} are read: {text[:40]!r} ...")
    if not ("&" in text and "*" in text) and "\\" not in text:
        return
    try:
        has_aliases = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        inner = None if has_aliases else yaml.load(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError):
        return  # it stays a text
    except RecursionError:
        has_aliases, inner = True, None
    if has_aliases:
        raise UnsafeYamlError(f"aliases (*) are not supported in a text: write the values out: {text[:40]!r} ...")
    for each in texts(inner):
        if each != text:
            refuse_aliases(each)


def everything_in(tree: object) -> Iterator[object]:
    """Yield all that a tree is made of: tables, lists, keys and values; namespaces of a parser as tables."""
    tree = vars(tree) if isinstance(tree, Namespace) else tree
    yield tree
    inner = [*tree, *tree.values()] if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    for each in inner:
        yield from everything_in(each)


def texts(tree: object) -> Iterator[str]:
    """Yield all texts in a tree, keys too."""
    return (each for each in everything_in(tree) if isinstance(each, str))


def _has_more_values_than(limit: int, tree: object) -> bool:
    """Whether a tree is too large; what is referred to again counts again, so a small file can hold a huge tree."""
    waiting, count = [tree], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            waiting.extend(value.values() if isinstance(value, dict) else value)
        count += 1
        if count + len(waiting) > limit:
            return True
    return False
