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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from jsonargparse import Namespace, set_parsing_settings

from fl_lightning.config.compose import ConfigError
from fl_lightning.runs import safe_yaml

_OWN = (
    *("aggregators", "asynchronous", "callbacks", "data", "engine", "module", "networks"),
    *("personal", "samplers", "server", "solvers", "system", "uploads"),
)  # fmt: skip
_LISTED = {"fl_lightning", "lightning", "torch", "torchmetrics", "torchvision"}  # of which something is on the list
_LIGHTNING = ("EarlyStopping", "LearningRateMonitor")
_IN_A_FOLDER = ("save_dir", "name", "version", "prefix")
LOGGERS = {  # of Lightning, with the arguments that may be set: none of them is an address, a key or a command
    "CSVLogger": (*_IN_A_FOLDER, "flush_logs_every_n_steps"),
    "TensorBoardLogger": (*_IN_A_FOLDER, "log_graph", "default_hp_metric", "sub_dir", "max_queue", "flush_secs"),
    "MLFlowLogger": ("save_dir", "experiment_name", "run_name", "tags", "prefix", "run_id", "synchronous"),
    "CometLogger": ("workspace", "project", "name", "prefix", "experiment_key"),  # online=False logs nothing at all
}
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

    Slow packages are looked into only if the texts, a configuration and overrides, name something of them.
    """
    for package in trusted:
        if not all(part.isidentifier() for part in package.split(".")) or package.split(".")[0] == "jsonargparse":
            raise ConfigError(f"--trust {package}: give the name of a package, as in an import")
    if trusted and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a package beside the config is found, as it is with python -m
    named = {name for text in safe_yaml.texts(texts) for name in _dotted_names(text)}
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
    """Return every dotted path that a configuration may name without trust: of all packages, or at least of some."""
    wanted = _LISTED if packages is None else {"fl_lightning", "torch", *packages} & _LISTED
    return {name for package in wanted for name in _names_of(package)}


@cache
def _names_of(package: str) -> frozenset[str]:
    """Return what a configuration may name of a listed package, which is imported only here."""
    if package == "fl_lightning":
        found = own_classes()
    elif package == "torch":
        from torch import nn, optim

        kinds = (nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler)
        found = _classes([nn, optim, optim.lr_scheduler], "torch.", kinds)
    elif package == "torchmetrics":
        from torchmetrics import Metric, classification, regression

        found = _classes([import_module(package), classification, regression], "torchmetrics.", (Metric,))
    elif package == "torchvision":
        from torchvision import models

        builders = {models.get_model_builder(name) for name in models.list_models(module=models)}
        found = _paths([models], lambda part: inspect.isfunction(part) and part in builders)
    else:
        from lightning.pytorch import callbacks, loggers

        listed = (*_LIGHTNING, *LOGGERS)
        found = _paths([callbacks, loggers], lambda part: inspect.isclass(part) and part.__name__ in listed)
    return frozenset().union(*found.values())


@cache
def own_classes() -> dict[Any, frozenset[str]]:
    """Return the public classes of this package, each with the dotted paths under which it can be named."""
    modules = [import_module("fl_lightning"), *(import_module(f"fl_lightning.{name}") for name in _OWN)]
    return _paths(modules, lambda part: inspect.isclass(part) and part.__module__.startswith("fl_lightning."))


def _classes(modules: Sequence[ModuleType], package: str, kinds: tuple[type, ...]) -> dict[Any, frozenset[str]]:
    return _paths(
        modules,
        lambda part: (
            inspect.isclass(part)
            and issubclass(part, kinds)
            and part.__module__.startswith(package)
            and not takes_something_risky(part)
        ),
    )


def _paths(modules: Sequence[ModuleType], wanted: Callable[[object], bool]) -> dict[Any, frozenset[str]]:
    """Return the wanted public parts of modules with the names under which they can be had, and are defined."""
    found: dict[Any, frozenset[str]] = {}
    for module in modules:
        for name in vars(module).get("__all__", dir(module)):
            part = None if name.startswith("_") else getattr(module, name, None)
            if part is not None and wanted(part):
                paths = {f"{module.__name__}.{name}", f"{part.__module__}.{part.__qualname__}"}
                found[part] = found.get(part, frozenset()) | paths
    return found


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


def _dotted_names(text: str) -> list[str]:
    """Return everything that is written like a dotted path, also in a text that is YAML."""
    hidden = ""
    if "\\" in text:  # a name may show only after parsing; what cannot be parsed, the parser will not read either
        with suppress(ValueError, TypeError, RecursionError):
            hidden = json.dumps(safe_yaml.load(text.partition("=")[2] or text, "a text"), default=str)
    return _DOTTED.findall(text) + _DOTTED.findall(hidden)


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


def _check_logger(spec: dict[str, Any]) -> None:
    """Refuse arguments of a logger by which a config could name an address, a key or a command."""
    module, _, name = spec["class_path"].rpartition(".")
    if name not in LOGGERS or not module.startswith("lightning."):
        return
    defaults = inspect.signature(getattr(import_module(module), name)).parameters
    given = {**spec, **(spec.get("init_args") or {})}
    for key in sorted(given.keys() - {"class_path", "init_args", *LOGGERS[name]}):
        if given[key] not in ("", None, defaults[key].default if key in defaults else None):
            raise ConfigError(
                f"{spec['class_path']}: a config may not set {key}: add --trust lightning, or set the logger's own "
                "environment variable, such as MLFLOW_TRACKING_URI"
            )


def check_classes(settings: Namespace, trusted: Sequence[str] = ()) -> list[str]:
    """Return every ``class_path``; refuse what is not on the list: functions, attributes and pretrained weights."""
    parts = list(safe_yaml.everything_in(settings))
    specs = [part for part in parts if isinstance(part, dict) and isinstance(part.get("class_path"), str)]
    for spec in specs:
        path = spec["class_path"]
        if _is_trusted(path, trusted):
            continue
        if path not in listed_names({path.split(".")[0]}):
            raise ConfigError(f"class_path {path} is not on the list of what a config may name: see SECURITY.md")
        weights = (spec.get("init_args") or {}).get("weights")
        if path.startswith("torchvision.models.") and weights is not None:
            raise ConfigError(f"{path}: weights={weights} would be downloaded: add --trust torchvision")
        _check_logger(spec)
    for part in parts:
        if callable(part) and not inspect.isclass(part):
            where = f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', part)}"
            if not _is_trusted(where, trusted):
                raise ConfigError(f"{where} is a function: a config may name classes alone")
    return [spec["class_path"] for spec in specs]
