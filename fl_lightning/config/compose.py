"""Finding, composing and merging configuration files. Imports nothing heavy, so that ``--help`` answers at once."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fl_lightning.config.nearest import nearest
from fl_lightning.runs import safe_yaml

FOLDER = Path(__file__).resolve().parent.parent / "configs"
if FOLDER.is_file():  # git on Windows makes a text file of the link to ../configs
    FOLDER = FOLDER.parent.parent / "configs"
DEMO = "digits_fedacs.yaml"


class ConfigError(ValueError):
    """Something in a configuration file or on the command line that the user can fix."""


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
        f"config {name!r} is neither a file nor a shipped config{_meant(stem)}: use <data>_<algorithm>.yaml with data "
        f"one of {', '.join(names('data'))} and algorithm one of {', '.join(names('algorithms'))}"
    )


def _meant(stem: str) -> str:
    """Return the shipped config that is most like a name, as a question."""
    data, algorithms = names("data"), names("algorithms")
    pairs = [f"{one}_{other}" for one in data for other in algorithms]
    found = nearest(stem, [*data, *algorithms, *pairs])
    return "" if found is None else f" (did you mean {found}.yaml?)"


def read(path: Path) -> dict[str, Any]:
    """Return the contents of one file."""
    try:
        loaded = safe_yaml.load_table(path.read_text(encoding="utf-8-sig"), f"config {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} cannot be read: {error}") from None
    except safe_yaml.UnsafeYamlError as error:
        raise ConfigError(str(error)) from None
    if "config" in loaded:
        raise ConfigError(
            f"config {path} has a key 'config': give several files on the command line, --config A --config B"
        )
    return loaded


def merge(under: Any, over: Any) -> Any:
    """Return ``over`` merged into ``under``: tables are merged key by key, everything else is replaced.

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
    """Return the base config with the named ones merged into it in order."""
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
