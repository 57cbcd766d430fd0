"""Finding, composing and merging configuration files. Imports nothing heavy, so that ``--help`` answers at once."""

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.cli import moved

FOLDER = Path(__file__).resolve().parent.parent / "configs"
DEMO = "digits_fedacs.yaml"
_MAX_VALUES = 1_000_000  # in one config


class ConfigError(ValueError):
    """Something in a configuration file or on the command line that the user can mend."""


def names(kind: str) -> list[str]:
    """Return the short names of the data sets (``data``) or the algorithms (``algorithms``)."""
    return sorted(path.stem for path in (FOLDER / kind).glob("*.yaml"))


def resolve(name: str) -> list[Path]:
    """Return the files that a name on the command line stands for.

    A file that exists is taken as it is. A bare name is looked up among the shipped configs;
    ``<data>_<algorithm>.yaml`` stands for one file of each kind, so no combination needs a file of its own.

    >>> [path.relative_to(FOLDER).as_posix() for path in resolve("mnist_fedacs.yaml")]
    ['data/mnist.yaml', 'algorithms/fedacs.yaml']
    """
    given = Path(name)
    if given.is_file():
        return [given]
    stem = given.name.removesuffix(".yaml").removesuffix(".yml")
    if given.name == name:
        for folder in (FOLDER, FOLDER / "data", FOLDER / "algorithms"):
            if (folder / f"{stem}.yaml").is_file():
                return [folder / f"{stem}.yaml"]
        data, _, algorithm = stem.partition("_")
        files = [FOLDER / "data" / f"{data}.yaml", FOLDER / "algorithms" / f"{algorithm}.yaml"]
        if all(file.is_file() for file in files):
            return files
    raise ConfigError(
        f"config {name!r} is neither a file nor a shipped config: use <data>_<algorithm>.yaml with data one of "
        f"{', '.join(names('data'))} and algorithm one of {', '.join(names('algorithms'))}"
    )


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that is written twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict[str, Any]:
    """Return the contents of one file, with the class paths of today."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"config {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError(f"config {path} must be a table of keys, but is a {type(loaded).__name__}")
    if _has_more_values_than(_MAX_VALUES, loaded):
        raise ConfigError(f"config {path} has over {_MAX_VALUES:,} values, or refers to itself")
    return moved.current(loaded)


def _has_more_values_than(limit: int, tree: Any) -> bool:
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


def merge(under: Any, over: Any) -> Any:
    """Return ``over`` laid on ``under``: tables are merged key by key, everything else is replaced.

    Arguments belong to their class: where the class changes, the arguments beneath are dropped.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    >>> merge({"class_path": "A", "init_args": {"x": 1}}, {"class_path": "B"})
    {'class_path': 'B'}
    """
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    if "class_path" in over and over["class_path"] != under.get("class_path", over["class_path"]):
        return over
    return {**under, **{key: merge(under[key], value) if key in under else value for key, value in over.items()}}


def compose(config_names: Iterable[str]) -> dict[str, Any]:
    """Return the base config with the named ones laid on it in order."""
    merged = read(FOLDER / "base.yaml")
    for name in config_names:
        for path in resolve(name):
            merged = merge(merged, read(path))
    return merged


def run_name(config_names: list[str]) -> str:
    """Return the name of a run, after its last config.

    >>> run_name(["mnist_fedacs.yaml"]), run_name(["mnist.yaml", "fedavg.yaml"])
    ('mnist_fedacs', 'mnist_fedavg')
    """
    return "_".join(Path(name).stem for name in config_names)
