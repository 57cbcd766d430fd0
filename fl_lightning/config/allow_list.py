"""What a configuration may name: a file from a stranger must not be able to run code.

Naming a class imports its module, which runs it, and makes an object, which runs its constructor with arguments of the
file's choice. So a configuration may name only what is on a list: the public classes of this package; of ``torch.nn``,
``torch.optim``, ``torchmetrics`` and ``torchvision.models`` those that are used as modules, optimizers, schedules,
metrics and networks, unless a constructor takes a path, bytes, a callable or a command. No other function may be named,
and nothing is made of values whose type is open. ``--trust PACKAGE`` adds all of a package. The check comes before the
import.
"""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType

from jsonargparse import Namespace, set_parsing_settings

from fl_lightning.config.compose import ConfigError, Settings
from fl_lightning.runs import safe_yaml

_OWN = (
    *("aggregators", "asynchronous", "callbacks", "data", "engine", "module", "networks"),
    *("samplers", "server", "solvers", "system", "uploads"),
)  # fmt: skip
_LISTED = {"fl_lightning", "lightning", "torch", "torchmetrics", "torchvision"}  # of which something is on the list
_LIGHTNING = ("EarlyStopping", "LearningRateMonitor")
_NOT_ALLOWED = re.compile(r"Importing '([\w.]+)' is not allowed")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")
# Names and types of arguments through which a constructor could load, call or start something.
_RISKY_NAMES = re.compile(
    r"path|file|folder|dir(?!ection)|url|command|cmd|script|tokenizer|_fn$|^fn$|func|lambda|hook|closure|callable|"
    r"checkpoint|^model$|model_name|backbone|extractor|encoder$|pickle|bytes|buffer$|library|module_name|executable"
)
_RISKY_TYPES = re.compile(r"Callable|bytes|Path|IO\b|PathLike|ModuleType|function")
_allowed_before: set[str] = set()  # jsonargparse's settings are global: what an earlier call allowed is taken back


def limit_imports(trusted: Sequence[str] = (), texts: Sequence[object] = ()) -> None:
    """Let configurations name only what is on the list, and the trusted packages.

    Args:
        trusted: Packages.
        texts: The configuration and the arguments of the command line, which say whether slow packages must be looked
            into.

    Raises:
        ConfigError: If a trusted package is not written like one, or an attribute of a class is named.
    """
    for package in trusted:
        if not all(part.isidentifier() for part in package.split(".")) or package.split(".")[0] == "jsonargparse":
            raise ConfigError(f"--trust {package}: give the name of a package, as in an import")
    if trusted and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a package beside the config is found, as it is with python -m
    named = {name for text in _everything_in(texts) if isinstance(text, str) for name in _dotted_names(text)}
    allowed = listed_names({name.split(".")[0] for name in named})
    for name in sorted(named):
        above = name.rpartition(".")[0]
        if name not in allowed and above in allowed and not _is_trusted(name, trusted):
            raise ConfigError(f"{name} is an attribute of a class: a config may name the class alone")
    everything = allowed | set(trusted)
    set_parsing_settings(
        import_path_denylist=["*", *(_allowed_before - everything)],
        import_path_allowlist=sorted(everything),
        instantiate_subclass_spec_in_any=False,  # nothing is made inside values whose type is open
    )
    _allowed_before.update(everything)


def listed_names(packages: set[str] | None = None) -> set[str]:
    """Return every dotted path that a configuration may name without trust.

    Args:
        packages: Those of the slow packages that are wanted; all by default.
    """
    wanted = _LISTED if packages is None else {"fl_lightning", "torch", *packages} & _LISTED
    return {name for package in wanted for name in _names_of(package)}


@cache
def _names_of(package: str) -> frozenset[str]:
    """Return what a configuration may name of a listed package, which is imported only here."""
    if package == "fl_lightning":
        return frozenset(path for paths in own_classes().values() for path in paths)
    if package == "torch":
        from torch import nn, optim

        kinds = (nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler)
        return _paths([nn, optim, optim.lr_scheduler], lambda part: _is_of_kind(part, "torch.", kinds))
    if package == "torchvision":
        from torchvision import models

        builders = {models.get_model_builder(name) for name in models.list_models(module=models)}
        return _paths([models], lambda part: inspect.isfunction(part) and part in builders)
    if package == "torchmetrics":
        from torchmetrics import Metric, classification, regression

        modules = [import_module(package), classification, regression]
        return _paths(modules, lambda part: _is_of_kind(part, "torchmetrics.", (Metric,)))
    from lightning.pytorch import callbacks

    return _paths([callbacks], lambda part: inspect.isclass(part) and part.__name__ in _LIGHTNING)


@cache
def own_classes() -> dict[type, frozenset[str]]:
    """Return the public classes of this package, each with the dotted paths under which it can be named."""
    modules = [import_module("fl_lightning"), *(import_module(f"fl_lightning.{name}") for name in _OWN)]
    found: dict[type, frozenset[str]] = {}
    for module in modules:
        for name in _public_names(module):
            part = getattr(module, name, None)
            if inspect.isclass(part) and part.__module__.startswith("fl_lightning."):
                paths = {f"{module.__name__}.{name}", f"{part.__module__}.{part.__qualname__}"}
                found[part] = found.get(part, frozenset()) | paths
    return found


def _paths(modules: Sequence[ModuleType], wanted: Callable[[object], bool]) -> frozenset[str]:
    """Return under which names the wanted public parts of modules can be had, and where they are defined."""
    found = set()
    for module in modules:
        for name in _public_names(module):
            part: Callable[..., object] | None = getattr(module, name, None)
            if part is not None and wanted(part):
                found |= {f"{module.__name__}.{name}", f"{part.__module__}.{part.__qualname__}"}
    return frozenset(found)


def _public_names(module: ModuleType) -> list[str]:
    names = dir(module) if not hasattr(module, "__all__") else module.__all__
    return [name for name in names if not name.startswith("_")]


def _is_of_kind(part: object, package: str, kinds: tuple[type, ...]) -> bool:
    return (
        inspect.isclass(part)
        and issubclass(part, kinds)
        and part.__module__.startswith(package)
        and not takes_something_risky(part)
    )


def takes_something_risky(part: Callable[..., object]) -> bool:
    """Return whether a class or function takes a path, bytes, a callable or a command, as far as its signature shows.

    >>> import torch
    >>> takes_something_risky(torch.nn.Linear), takes_something_risky(torch.optim.lr_scheduler.LambdaLR)
    (False, True)
    """
    try:
        parameters = inspect.signature(part).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        _RISKY_NAMES.search(each.name) or _RISKY_TYPES.search(str(each.annotation)) or inspect.isfunction(each.default)
        for each in parameters
    )


def _everything_in(tree: object) -> Iterator[object]:
    """Yield all that a tree of settings is made of: tables, lists, keys and values, those of the parser as tables."""
    tree = vars(tree) if isinstance(tree, Namespace) else tree
    yield tree
    inner = [*tree, *tree.values()] if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    for each in inner:
        yield from _everything_in(each)


def _dotted_names(text: str) -> list[str]:
    """Return everything that is written like a dotted path, also in a text that is YAML."""
    hidden = _unescaped(text.partition("=")[2] or text) if "\\" in text else ""  # a name that shows only after parsing
    return _DOTTED.findall(text) + _DOTTED.findall(hidden)


def _unescaped(text: str) -> str:
    try:
        return json.dumps(safe_yaml.load(text, "a text"), default=str)
    except (ValueError, TypeError, RecursionError):
        return ""  # the parser will not read it either


def _is_trusted(path: str, trusted: Sequence[str]) -> bool:
    return path.startswith(tuple(f"{package}." for package in trusted))


def explained(error: str) -> str:
    """Return an error of the parser, or what to do about it where the import was not allowed.

    >>> explained("... Importing 'mine.Sampler' is not allowed, denied by ...")
    'mine.Sampler is not of a package that configs may name: if you would run its code yourself, add --trust mine'
    """
    denied = _NOT_ALLOWED.search(error)
    if denied is None:
        return error
    package = denied[1].split(".")[0]
    reason = "on the list of what a config" if package in _LISTED else "of a package that configs"
    return f"{denied[1]} is not {reason} may name: if you would run its code yourself, add --trust {package}"


def check_classes(settings: Namespace, trusted: Sequence[str] = ()) -> None:
    """Refuse what was parsed but is not on the list: a function, an attribute of a class, or pretrained weights."""
    for spec in _specs(settings):
        path = spec["class_path"]
        if _is_trusted(path, trusted):
            continue
        if path not in listed_names({path.split(".")[0]}):
            raise ConfigError(f"class_path {path} is not on the list of what a config may name: see SECURITY.md")
        weights = (spec.get("init_args") or {}).get("weights")
        if path.startswith("torchvision.models.") and weights is not None:
            raise ConfigError(f"{path}: weights={weights} would be downloaded: add --trust torchvision")
    for part in _everything_in(settings):
        if callable(part) and not inspect.isclass(part):
            where = f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', part)}"
            if not _is_trusted(where, trusted):
                raise ConfigError(f"{where} is a function: a config may name classes alone")


def _specs(settings: Namespace) -> Iterator[Settings]:
    """Yield every table with a ``class_path``."""
    for table in _everything_in(settings):
        if isinstance(table, dict) and isinstance(table.get("class_path"), str):
            yield table


def class_paths(settings: Namespace) -> list[str]:
    """Return every ``class_path`` among parsed settings."""
    return [spec["class_path"] for spec in _specs(settings)]
