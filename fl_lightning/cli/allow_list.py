"""What a configuration may name: a file from a stranger must not be able to run code.

Naming a class imports its module, which runs it, and makes an object, which runs its constructor. So only a few
packages may be named, only classes of them (and the model functions of torchvision), and none of the parts of these
packages whose purpose is to load or to start something. The check comes before the import.
"""

import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jsonargparse import Namespace, set_parsing_settings

from fl_lightning.cli.configs import ConfigError

PACKAGES = ("fl_lightning", "torch", "lightning", "torchmetrics", "torchvision")
_NOT_ALLOWED = re.compile(r"Importing '([\w.]+)' is not allowed")
_MODEL_FUNCTIONS = "torchvision.models."
# Parts of these packages that load code or pickles, start processes, or fetch something.
_DENIED = (
    *(f"fl_lightning.{name}" for name in ("cli", "__main__", "data.fetching")),
    *(f"lightning.{name}" for name in ("app", "store", "pytorch.cli", "fabric.cli", "pytorch.demos")),
    *(f"lightning.{name}.strategies.launchers" for name in ("fabric", "pytorch")),
    "lightning.pytorch.trainer",
    *(f"torch.{name}" for name in ("hub", "load", "serialization", "package", "jit", "fx", "ops", "_ops", "classes")),
    *(f"torch.{name}" for name in ("distributed", "multiprocessing", "testing", "export", "onnx", "compile")),
    *(f"torch.{name}" for name in ("_dynamo", "_inductor", "utils.cpp_extension", "utils.model_zoo")),
    *(f"torch.utils.{name}" for name in ("bottleneck", "collect_env", "benchmark")),
    "torchvision.datasets",
    "torchvision.io",
)  # fmt: skip
_extended: list[str] = []  # jsonargparse's settings are global, so what an earlier call trusted must be taken back


def limit_imports(trusted: Sequence[str] = ()) -> None:
    """Let configurations name only the known packages and the trusted ones.

    Raises:
        ConfigError: If a trusted package is not written like one.
    """
    for package in trusted:
        if not all(part.isidentifier() for part in package.split(".")) or package.split(".")[0] == "jsonargparse":
            raise ConfigError(f"--trust {package}: give the name of a package, as in an import")
    if trusted and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a package beside the config is found, as it is with python -m
    set_parsing_settings(import_path_denylist=["*", *_DENIED, *_extended], import_path_allowlist=[*PACKAGES, *trusted])
    _extended.extend(package for package in trusted if package not in _extended)


def explained(complaint: str) -> str:
    """Return a complaint of the parser, or what to do about it where the import was not allowed.

    >>> explained("... Importing 'mine.Sampler' is not allowed, denied by ...")
    'mine.Sampler is not of a package that configs may name: if you would run its code yourself, add --trust mine'
    """
    denied = _NOT_ALLOWED.search(complaint)
    if denied is None:
        return complaint
    package = denied[1].split(".")[0]
    if package in PACKAGES:
        return f"{denied[1]} is not something that a config may name: it loads or starts things"
    advice = f"if you would run its code yourself, add --trust {package}"
    return f"{denied[1]} is not of a package that configs may name: {advice}"


def check_classes(settings: Namespace, trusted: Sequence[str] = ()) -> None:
    """Refuse a ``class_path`` that names a function, which would be called with arguments of the file's choice."""
    for path in class_paths(settings.as_dict()):
        allowed = (_MODEL_FUNCTIONS, *(f"{package}." for package in trusted))
        if not path.startswith(allowed) and not inspect.isclass(pkgutil.resolve_name(path)):
            raise ConfigError(f"class_path {path} is not a class: only classes and torchvision.models may be named")


def class_paths(tree: Any) -> Iterator[str]:
    """Yield every ``class_path`` in a tree."""
    if isinstance(tree, dict):
        if isinstance(tree.get("class_path"), str):
            yield tree["class_path"]
        for value in tree.values():
            yield from class_paths(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from class_paths(value)
