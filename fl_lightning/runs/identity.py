"""What identifies a run: its settings, the contents of the files that they name, and the versions that made it."""

import hashlib
import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# What may change between a run and its continuation, because it does not change a result.
FREE_KEYS = (
    "run_dir",
    "logger",
    "checkpoint",
    "start_timeout",
    "fabric.devices",
    "fabric.strategy",
    "fabric.num_nodes",
)
_PACKAGES = ("fl-lightning", "torch", "lightning", "torchmetrics", "numpy", "wandb")
_DECIDING = ("python", "fl-lightning", "torch", "lightning", "torchmetrics", "numpy")  # that can change a number
_CHUNK = 1 << 20


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their dotted paths; lists are leaves.

    >>> flat({"loop": {"lr": 0.1, "solver": {"init_args": {"momentum": 0.9}}}})
    {'loop.lr': 0.1, 'loop.solver.momentum': 0.9}
    """
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = prefix if key == "init_args" else f"{prefix}.{key}".lstrip(".")
        leaves |= flat(value, path)
    return leaves


def is_free(key: str) -> bool:
    """Whether a key may differ between a run and its continuation.

    >>> is_free("fabric.devices"), is_free("fabric.precision")
    (True, False)
    """
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)


def settings_hash(settings: Any) -> str:
    """Return the hash of the settings that decide the results."""
    deciding = {key: value for key, value in flat(settings).items() if not is_free(key)}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()


def named_files(settings: Any) -> dict[str, dict[str, str]]:
    """Return path and sha256 of each file that the settings name, by the key that names it.

    Folders are not looked into: the data sets in them have checksums of their own.
    """
    found: dict[str, dict[str, str]] = {}
    for key, leaf in flat(settings).items():
        for place, text in _strings(leaf, key):
            if not is_free(place) and not place.endswith("class_path") and _is_file(text):
                found[place] = {"path": text, "sha256": _content_hash(Path(text))}
    return found


def _strings(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            if isinstance(entry, str | list | dict):
                yield from _strings(entry, f"{key}[{number}]")
    elif isinstance(value, dict):
        for name, entry in flat(value, key).items():
            if entry is not value:
                yield from _strings(entry, name)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        return False


def _content_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def changed_files(there: Any, here: dict[str, dict[str, str]]) -> list[str]:
    """Return in words which files are not what they were; one that the run made itself is not in ``there``.

    >>> old = {"loop.schedule.trace": {"path": "trace.csv", "sha256": "ab"}}
    >>> changed_files(old, {"loop.schedule.trace": {"path": "trace.csv", "sha256": "cd"}})
    ['the contents of trace.csv (loop.schedule.trace) changed']
    """
    if not isinstance(there, dict):
        return []  # of a version that did not store them
    changed = []
    for key, stored in there.items():
        if not isinstance(stored, dict):
            continue
        if key not in here:
            changed.append(f"{stored.get('path')} ({key}) is not there any more")
        elif stored.get("sha256") != here[key]["sha256"]:
            changed.append(f"the contents of {here[key]['path']} ({key}) changed")
    return changed


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and the packages that decide the numbers."""
    return {"python": platform.python_version()} | {name: _installed(name) for name in _PACKAGES}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def other_versions(there: Any) -> list[str]:
    """Return in words which versions that can change a number are not those of the earlier part of a run."""
    if not isinstance(there, dict):
        return []
    here = installed_versions()
    return [
        f"{name} was {there[name]} and is {here[name]}"
        for name in _DECIDING
        if isinstance(there.get(name), str) and there[name] != here[name]
    ]
