"""Finding, composing and merging configuration files. Imports nothing heavy, so that ``--help`` answers at once."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fl_lightning.output import read_plain
from fl_lightning.runs import safe_yaml

FOLDER = Path(__file__).resolve().parent.parent / "configs"
if FOLDER.is_file():  # git on Windows makes a text file of the link to ../configs
    FOLDER = FOLDER.parent.parent / "configs"
DEMO = "digits_fedacs.yaml"
SYSTEM = "paper"  # where nothing else is said
_OF_A_SYSTEM = ("schedule", "channel", "clock")
RECOMMENDED = "limitedfedacs"  # by diagnose, for every data set that is shipped: a test asks it
_ALIKE = 0.65  # of 1: one wrong letter in three is too much

Settings = dict[str, Any]  # a table of a configuration, as it is read; what may stand where, the parser knows


class ConfigError(ValueError):
    """Something in a configuration file or on the command line that the user can fix."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a word; None where none is like it.

    >>> nearest("fedacz", ["fedavg", "fedacs"]), nearest("Uniform", ["Importance"])
    ('fedacs', None)
    """
    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:100].lower(), folded, n=1, cutoff=_ALIKE)
    return folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a question to put behind an error, or nothing.

    >>> suggestion("fedacz", ["fedavg", "fedacs"])
    ' (did you mean fedacs?)'
    """
    found = nearest(word, known)
    return "" if found is None or found == word else f" (did you mean {found}?)"


def names(kind: str) -> list[str]:
    """Return the short names of the data sets (``data``), the ``algorithms`` or the ``systems``."""
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
    if stem in names("systems"):
        raise ConfigError(f"{name} is a system: give it as --system {stem}")
    pairs = [f"{data}_{algorithm}" for data in names("data") for algorithm in names("algorithms")]
    found = nearest(stem, [*names("data"), *names("algorithms"), *pairs])
    meant = "" if found is None else f" (did you mean {found}.yaml?)"
    raise ConfigError(
        f"config {name!r} is neither a file nor a shipped config{meant}: use <data>_<algorithm>.yaml with data "
        f"one of {', '.join(names('data'))} and algorithm one of {', '.join(names('algorithms'))}"
    )


def read(path: Path) -> Settings:
    """Return the contents of one file; an empty one has no keys."""
    try:
        text = read_plain(path, safe_yaml.MAX_BYTES).decode("utf-8-sig")
        loaded = safe_yaml.load(text, f"config {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} cannot be read: {error}") from None
    except safe_yaml.UnsafeYamlError as error:
        raise ConfigError(str(error)) from None
    loaded = {} if loaded is None else loaded
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError(f"config {path} must be a table of keys, but is a {type(loaded).__name__}")
    if "config" in loaded:
        raise ConfigError(
            f"config {path} has a key 'config': give several files on the command line, --config A --config B"
        )
    return loaded


def merge(under: Settings, over: Settings) -> Settings:
    """Return ``over`` merged into ``under``: tables are merged key by key, everything else is replaced.

    Arguments belong to their class: where the class changes, the arguments beneath are dropped.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    >>> merge({"class_path": "A", "init_args": {"x": 1}}, {"class_path": "B"})
    {'class_path': 'B'}
    """
    if "class_path" in over and over["class_path"] != under.get("class_path", over["class_path"]):
        return over
    merged = under | over
    for key in under.keys() & over.keys():
        if isinstance(under[key], dict) and isinstance(over[key], dict):
            merged[key] = merge(under[key], over[key])
    return merged


def compose(config_names: Iterable[str], system: str | None = None) -> Settings:
    """Return the base config with a system and then the named configs merged into it, in order.

    The system is the one given, else the last that a config names itself (``system: phones``), else the paper's.
    """
    given = list(config_names)
    merged = merge(read(FOLDER / "base.yaml"), _read_system(system_of(given, system)))
    for file in _files(given).values():
        merged = merge(merged, {key: value for key, value in file.items() if key != "system"})
    return merged


def _files(config_names: Iterable[str]) -> dict[Path, Settings]:
    return {path: read(path) for name in config_names for path in resolve(name)}


def system_of(config_names: Iterable[str], system: str | None = None) -> str:
    """Return which system configs have: a name, or a file.

    >>> system_of(["mnist_fedacs.yaml"]), system_of(["toy.yaml"]), system_of(["toy.yaml"], "phones")
    ('paper', 'toy', 'phones')
    """
    named = [(path, file["system"]) for path, file in _files(config_names).items() if "system" in file]
    path, name = named[-1] if named and system is None else (None, system)
    if name is None and path is None:
        return SYSTEM
    known = names("systems")
    stem = name.removesuffix(".yaml") if isinstance(name, str) else ""
    if stem not in known and not (stem and Path(str(name)).is_file()):
        place, hint = "" if path is None else f"{path}: ", suggestion(stem, known)
        raise ConfigError(f"{place}system {name!r} is unknown{hint}: use a file, or one of {', '.join(known)}")
    return str(name) if Path(str(name)).is_file() else stem


def _read_system(name: str) -> Settings:
    path = Path(name) if Path(name).is_file() else FOLDER / "systems" / f"{name}.yaml"
    found = read(path)
    loop = found.get("loop", {})
    foreign = [key for key in found if key != "loop"]
    foreign += [f"loop.{key}" for key in loop if key not in _OF_A_SYSTEM] if isinstance(loop, dict) else ["loop"]
    if foreign:
        wanted = ", ".join(f"loop.{key}" for key in _OF_A_SYSTEM)
        raise ConfigError(
            f"{path} sets {', '.join(foreign)}, but a system sets {wanted} alone: use --config for the rest"
        )
    return found


def other_system(config_names: list[str], system: str | None) -> Settings:
    """Return the name of a system that was given, to name a folder by; nothing where the configs name it themselves."""
    own, given = system_of(config_names), system_of(config_names, system)
    return {} if own == given else {"system": Path(given).name.removesuffix(".yaml")}


def run_name(config_names: list[str]) -> str:
    """Return the name of a run, after its last config.

    >>> run_name(["mnist_fedacs.yaml"]), run_name(["mnist.yaml", "fedavg.yaml"])
    ('mnist_fedacs', 'mnist_fedavg')
    """
    return "_".join(Path(name).stem for name in config_names)


def label(name: str) -> str:
    """Return what an algorithm is called: its name, or the stem of its file.

    >>> label("fedavg"), label("algorithms/mine.yaml")
    ('fedavg', 'mine')
    """
    return name if name in names("algorithms") else Path(name).stem


def names_given(text: str) -> list[str]:
    """Return the algorithms that a comma-separated list of names and files, or ``all``, stands for; FedAvg first.

    >>> names_given("fedacs, fedavg")
    ['fedavg', 'fedacs']
    """
    known = names("algorithms")
    given = known if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not given:
        raise ConfigError("--algorithms needs names or files, separated by commas, or all")
    given = sorted(dict.fromkeys(given), key=lambda name: name != "fedavg")
    for name in given:
        if name not in known and not Path(name).is_file():
            hint = suggestion(name, known)
            raise ConfigError(f"algorithm {name!r} is unknown{hint}: use a file, all, or some of {', '.join(known)}")
    labels = [label(name) for name in given]
    twice = sorted({each for each in labels if labels.count(each) > 1})
    if twice:
        raise ConfigError(f"--algorithms has {', '.join(twice)} more than once: rename the file")
    return given
