"""What an object remembers, as values that can be compared before and after it was used."""

import functools
import hashlib
import itertools
import operator
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from logging import Logger
from typing import Any

import numpy as np
import torch
from torch import nn
from torchmetrics import Metric

_DEPTH, _VALUES, _ENDS, _BYTES = 8, 20_000, 100, 1 << 22  # bounds, so that no object is too large to look at
_LIBRARIES = ("torch", "torchvision", "torchmetrics", "lightning", "fl_lightning")
_IN_FLAT_MODEL = ("_parameters", "_buffers", "_modules", "_c", "_concrete_type")
_NO_STATE = (type, types.ModuleType, types.BuiltinFunctionType, property, Logger)
_CONTAINERS = (list, tuple, deque, set, frozenset, Mapping, np.ndarray, torch.Tensor)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def remembered(module: nn.Module) -> dict[str, Any]:
    """Return what a module remembers outside its trainable parameters and its buffers, by the name of the attribute.

    Attributes of all its parts are followed into containers, objects, closures, attributes of its classes and global
    variables that its methods use, within bounds. Metrics are left out: see :func:`metric_counts`.
    """
    walk = _Walk()
    parts = list(module.named_modules())
    walk.seen.update((id(part), part) for _, part in parts)
    for prefix, part in parts:
        if isinstance(part, (Metric, torch.jit.ScriptModule)):  # a compiled part keeps nothing in Python but caches
            continue
        start = f"{prefix}." if prefix else ""
        for name, value in vars(part).items():
            if name not in _IN_FLAT_MODEL:
                walk.visit(start + name, value)
        for name, parameter in part.named_parameters(recurse=False):
            if not parameter.requires_grad:
                walk.visit(start + name, parameter)
        for name, buffer in getattr(part, "_buffers", {}).items():
            walk.found[f"{start}{name}"] = buffer is None  # a buffer that appears while training is in no flat model
    for kind in dict.fromkeys(type(part) for _, part in parts):
        for name, value in _of_class(kind):
            walk.visit(name, value)
    return walk.found


def metric_counts(module: nn.Module) -> list[int]:
    """Return how often each metric of a module was updated."""
    return [part.update_count for part in module.modules() if isinstance(part, Metric)]


def fingerprint(value: Any) -> dict[str, Any]:
    """Return all that an object holds.

    >>> fingerprint([1, {"a": 2}]) == fingerprint([1, {"a": 2}]), fingerprint([1]) == fingerprint([2])
    (True, False)
    """
    walk = _Walk()
    walk.visit("", value)
    return walk.found


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a user's class, and the global variables with state that its methods use."""
    for cls in kind.__mro__:
        if cls.__module__.partition(".")[0] in (*_LIBRARIES, "builtins"):
            continue
        for name, value in vars(cls).items():
            if isinstance(value, types.FunctionType):
                for used in value.__code__.co_names:
                    found = value.__globals__.get(used)
                    if isinstance(found, (int, float, *_CONTAINERS, *_GENERATORS)):
                        yield f"global {used}", found
            elif not name.startswith("__") and isinstance(value, (int, float, *_CONTAINERS, *_GENERATORS)):
                yield f"{cls.__name__}.{name}", value


class _Walk:
    """Goes through what an object holds and keeps a value for each path to something that can be compared."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.seen: dict[int, Any] = {}  # keeps what it has seen alive, so that no number is given twice

    def visit(self, path: str, value: Any, depth: int = 0) -> None:
        """Keep what can be compared of a value and of what it holds."""
        if value is None or isinstance(value, (bool, int, str, bytes)):
            self.found[path] = value
        elif isinstance(value, (float, complex, np.generic)):
            self.found[path] = repr(value)  # not a number differs from itself
        elif id(value) in self.seen or depth > _DEPTH or len(self.found) > _VALUES or isinstance(value, _NO_STATE):
            return
        else:
            self.seen[id(value)] = value
            self.found[path] = _summary(value)
            for name, held in _held(value):
                self.visit(f"{path}{name}", held, depth + 1)


def _summary(value: Any) -> Any:
    """Return what tells two values of one type apart besides what they hold."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), _digest(np.ascontiguousarray(value)) if value.dtype != object else None)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, (itertools.count, itertools.repeat)):
        return repr(value)
    if isinstance(value, (set, frozenset)):
        return (len(value), sorted(map(repr, value)) if len(value) < _VALUES else None)
    if isinstance(value, (list, tuple, deque, Mapping)):
        return len(value)
    return (type(value).__qualname__, operator.length_hint(value, -1) if isinstance(value, Iterator) else None)


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds."""
    if isinstance(value, (torch.Tensor, torch.Generator, np.ndarray, random.Random)):
        return
    if isinstance(value, np.random.Generator):
        yield "", value.bit_generator.state
    elif isinstance(value, np.random.RandomState):
        yield "", value.get_state(legacy=False)
    elif isinstance(value, Mapping):
        for key, held in _ends(list(value.items())):
            yield f"[{key!r:.40}]", held
    elif isinstance(value, (list, tuple, deque)):
        for index, held in _ends(list(enumerate(value))):
            yield f"[{index}]", held
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f" uses {name}", getattr(cell, "cell_contents", None)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield "()", (value.func, value.args, value.keywords)
    elif type(value).__module__.partition(".")[0] != "lightning":  # a Trainer or a Fabric is not the module's own
        for name, held in getattr(value, "__dict__", {}).items():
            yield f".{name}", held
        for name in getattr(type(value), "__slots__", ()):
            yield f".{name}", getattr(value, name, None)


def _ends(items: list[Any]) -> list[Any]:
    return items if len(items) <= 2 * _ENDS else items[:_ENDS] + items[-_ENDS:]


def _of_tensor(tensor: torch.Tensor) -> Any:
    kind = (tuple(tensor.shape), str(tensor.dtype))
    try:
        plain = tensor.detach().reshape(-1)
        if plain.numel() * plain.element_size() > _BYTES:
            return (*kind, repr(plain.double().sum().item() if plain.is_floating_point() else plain.sum().item()))
        return (*kind, _digest(plain.cpu().contiguous().view(torch.uint8).numpy()))
    except (RuntimeError, NotImplementedError):  # sparse, quantised, without memory
        return kind


def _digest(array: Any) -> str:
    data = array.reshape(-1).view(np.uint8)
    if data.nbytes > _BYTES:
        data = np.concatenate([data[: _BYTES // 2], data[-_BYTES // 2 :]])
    return hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
