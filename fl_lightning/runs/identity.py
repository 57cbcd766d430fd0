"""What identifies a run: its settings, the files that they name, the versions that made it, and so its folder.

The folder of a run that is given none is made of the config's name and of what differs from it: a function of the
command line alone. So the same command resumes its own run, another one does not meet it, and the trials of a sweep can
run at the same time. Imports nothing heavy.
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fl_lightning.runs import safe_yaml

# What may change between a run and its continuation, because it does not change a result.
FREE_KEYS = (
    *("run_dir", "logger", "checkpoint", "start_timeout"),
    *("fabric.devices", "fabric.strategy", "fabric.num_nodes"),
)
_PACKAGES = ("fl-lightning", "torch", "lightning", "torchmetrics", "numpy", "wandb")
_DECIDING = ("python", *_PACKAGES[:-1])  # that can change a number
_LONGEST = 80  # part of a folder's name
_MISSING = object()


def flat(tree: object, prefix: str = "") -> dict[str, object]:
    """Return the leaves of a tree by their dotted paths; lists are leaves.

    >>> flat({"loop": {"lr": 0.1, "solver": {"init_args": {"momentum": 0.9}}}})
    {'loop.lr': 0.1, 'loop.solver.momentum': 0.9}
    """
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    leaves: dict[str, object] = {}
    for key, value in tree.items():
        leaves |= flat(value, _below(prefix, key))
    return leaves


def _below(prefix: str, key: object) -> str:
    return prefix if key == "init_args" else f"{prefix}.{key}".lstrip(".")


def is_free(key: str) -> bool:
    """Whether a key may differ between a run and its continuation.

    >>> is_free("fabric.devices"), is_free("fabric.precision")
    (True, False)
    """
    return f"{key}.".startswith(tuple(f"{free}." for free in FREE_KEYS))


def about(config: str) -> dict[str, object]:
    """Return what a checkpoint says of its run: the config, the files that it names, and the versions in use."""
    tree = safe_yaml.load(config, "the config")
    deciding = {key: value for key, value in flat(tree).items() if not is_free(key)}
    return {
        "config": config,
        "config_hash": settings_hash(deciding),
        "files": named_files(tree),
        "versions": installed_versions(),
    }


def settings_hash(settings: dict[str, object]) -> str:
    """Return the sha256 of settings, whatever their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def named_files(settings: object) -> dict[str, dict[str, str]]:
    """Return path and sha256 of each file that the settings name, by key; folders are not looked into."""
    return {
        place: {"path": text, "sha256": _content_hash(Path(text))}
        for place, text in _strings(settings)
        if not is_free(place) and not place.endswith("class_path") and os.path.isfile(text)
    }


def _strings(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _strings(entry, f"{key}[{number}]")
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _strings(entry, _below(key, name))


def _content_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def changed_files(there: object, here: object) -> list[str]:
    """Return in words which files are not what they were; one that the run made itself is not in ``there``.

    >>> old = {"loop.schedule.trace": {"path": "trace.csv", "sha256": "ab"}}
    >>> changed_files(old, {"loop.schedule.trace": {"path": "trace.csv", "sha256": "cd"}})
    ['the contents of trace.csv (loop.schedule.trace) changed']
    """
    if not isinstance(there, dict) or not isinstance(here, dict):
        return []  # a damaged marker
    stored = {key: file for key, file in there.items() if isinstance(file, dict)}
    return [
        f"the contents of {here[key]['path']} ({key}) changed"
        if key in here
        else f"{file.get('path')} ({key}) is not there any more"
        for key, file in stored.items()
        if key not in here or file.get("sha256") != here[key]["sha256"]
    ]


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and the packages that decide the numbers."""
    return {"python": platform.python_version()} | {name: _installed(name) for name in _PACKAGES}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def other_versions(there: object) -> list[str]:
    """Return in words which versions that can change a number are not those of the earlier part of a run."""
    if not isinstance(there, dict):
        return []
    here = installed_versions()
    return [
        f"{name} was {there[name]} and is {here[name]}"
        for name in _DECIDING
        if isinstance(there.get(name), str) and there[name] != here[name]
    ]


def differences(there: str, here: str, also_free: tuple[str, ...] = ()) -> list[str]:
    """Return in words what differs between two configurations, other than what does not change a result."""
    return [
        f"{key} is {_shown(old)} there and {_shown(new)} here"
        for key, (old, new) in _differing(there, here, also_free).items()
    ]


def _differing(there: str, here: str, also_free: tuple[str, ...] = ()) -> dict[str, tuple[object, object]]:
    """Return the values there and here by keys; what is not set is the same as a key that is not there."""
    old, new = (flat(safe_yaml.load(text, "the stored config")) for text in (there, here))
    # Arguments of a class that is not used there come last.
    keys = sorted({*old, *new}, key=lambda key: (key not in old or key not in new, key))
    return {
        key: (old.get(key, _MISSING), new.get(key, _MISSING))
        for key in keys
        if not is_free(key) and key not in also_free and old.get(key) != new.get(key)
    }


def _shown(value: object) -> str:
    text = "absent" if value is _MISSING else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def run_folder(name: str, changed: Mapping[str, object], seed: int) -> Path:
    """Return ``runs/<config>/seed_<seed>``, with what differs in between.

    >>> run_folder("digits_fedacs", {}, 0).as_posix(), run_folder("digits_fedacs", {"loop.lr": 0.02}, 0).as_posix()
    ('runs/digits_fedacs/seed_0', 'runs/digits_fedacs/lr=0.02/seed_0')
    """
    return Path("runs", name, in_words(changed), f"seed_{seed}")


def apart(folder: Path, there: str | None, config: str) -> Path:
    """Return the folder of a run, or one beside it where a run of another config lies there, named by what differs.

    A config file that was changed since has the same name as before.
    """
    different = {} if there is None else _differing(there, config)
    named = {key: new for key, (old, new) in different.items() if _MISSING not in (old, new)}
    return folder.parent / in_words(named or {key: str(new) for key, (_, new) in different.items()}) / folder.name


def changed_settings(
    merged: Mapping[str, object], complete: Mapping[str, object], settings: Sequence[tuple[str, str | None]]
) -> dict[str, object]:
    """Return those settings of the command line that make ``complete`` another run than the ``merged`` configs alone.

    >>> tree = {"loop": {"lr": 0.1, "rounds": 9}}
    >>> changed_settings(tree, {"loop": {"lr": 0.2, "rounds": 9}}, [("loop.lr", "2e-1"), ("loop.rounds", "9")])
    {'loop.lr': 0.2}
    """
    old = flat(merged)
    new = flat(complete)
    changed: dict[str, object] = {}
    for given, text in settings:
        key = given.removesuffix("+").replace(".init_args", "")
        if is_free(key) or key == "seed":
            continue
        inner = [path for path in new if path.startswith(f"{key}.")]
        if not (text or "").lstrip().startswith("{"):  # of a class, the name alone was given
            inner = [path for path in inner if path == f"{key}.class_path"]
        paths = [path for path in (key, *inner) if path in new and new[path] != old.get(path, _MISSING)]
        changed |= {path: new[path] for path in paths}
    return changed


def in_words(changed: Mapping[str, object]) -> str:
    """Return settings as a part of a path; a long one is cut and gets a hash.

    >>> in_words({"loop.lr": 0.02, "loop.sampling.sampler.class_path": "fl_lightning.samplers.Uniform"})
    'lr=0.02,sampling.sampler=Uniform'
    """
    words = []
    for key, value in sorted(changed.items()):
        is_class = key.endswith(".class_path")
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
        name = key.removesuffix(".class_path").removeprefix("loop.")
        words.append(f"{name}={text.rpartition('.')[2] if is_class else text}")
    whole = ",".join(words)
    clean = re.sub(r"[^\w.,=+-]", "_", whole)
    if clean == whole and len(whole) <= _LONGEST:
        return whole
    return f"{clean[: _LONGEST - 20]}-{settings_hash(dict(changed))[:8]}"
