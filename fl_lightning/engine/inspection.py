"""What modules and data do besides computing: random numbers, state of their own, buffers. Found out once, at setup."""

import functools
import hashlib
import itertools
import operator
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from logging import Logger

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics import Metric

from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.evaluation import batch_length
from fl_lightning.engine.machine import kept_streams, positions, seed_streams
from fl_lightning.engine.model import StepError, naming_client
from fl_lightning.types import widened

_STEPS = 3  # some state shows from the second step on
_CLIENTS, _EXAMPLES = 8, 2  # whose data is looked at, and how much of it
_NAMES = 5  # attributes that are named in a warning
_GONE = object()
# Bounds, so that no object is too large to look at.
_DEPTH = 8
_VALUES = 20_000
_ENDS = 100
_BYTES = 1 << 22
_LIBRARIES = ("torch", "torchvision", "torchmetrics", "lightning", "fl_lightning")
_IN_FLAT_MODEL = ("_parameters", "_buffers", "_modules", "_c", "_concrete_type")
_NO_STATE = (type, types.ModuleType, types.BuiltinFunctionType, property, Logger)
_CONTAINERS = (list, tuple, deque, set, frozenset, Mapping, np.ndarray, torch.Tensor)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a few local steps do besides computing a loss."""

    operations: int  # floating-point operations of one local step
    module_draws: bool  # from torch's, numpy's or Python's stream
    data_draws: bool
    module_state: str  # what the module remembers outside parameters and buffers, in words; empty if nothing
    data_state: str  # the same of the data
    counts_metrics: bool  # updates torchmetrics while training
    changes_buffers: bool


def inspect_training(trainer: ClientTrainer) -> Inspection:
    """Try a few steps, which leave their traces in the trainer's module: hand over one with a copy."""
    model, module = trainer.model, trainer.model.module
    device = model.weights.device
    with kept_streams(device), naming_client(module, trainer.batches.sample_client, 0):
        data_draws, data_state = _inspect_data(trainer.batches, device)
        start = model.state()
        before = remembered(module)
        metrics = metric_counts(module)
        with FlopCounterMode(display=False) as counter:
            first, drew = _gradient(trainer, 0)
        for index in range(1, _STEPS):
            drew |= _gradient(trainer, index)[1]
        changed = _changed(before, remembered(module))
        buffers_changed = not torch.equal(start.buffers, model.gather())
        moved = model.moved_parameters()
        if moved:
            raise StepError(
                f"{type(module).__name__}.training_step replaces the data of parameter {moved[0]!r}, so that steps no "
                "longer reach it: change it in place, for example by copy_() or clamp_() under torch.no_grad()"
            )
        model.load(start.weights, start.buffers)
        again, _ = _gradient(trainer, 0)
        sample_length = max(1, batch_length(trainer.batches.sample()))
    state = ", ".join(changed[:_NAMES]) + (", ..." if len(changed) > _NAMES else "")
    if not state and not data_state and not _close(first, again):
        state = "something that no attribute shows; the same step gave another gradient under the same seed"
    return Inspection(
        operations=counter.get_total_flops() * int(np.median(trainer.batches.lengths)) // sample_length,
        module_draws=drew,
        data_draws=data_draws,
        module_state=state,
        data_state=data_state,
        counts_metrics=metrics != metric_counts(module),
        changes_buffers=buffers_changed,
    )


def _gradient(trainer: ClientTrainer, index: int) -> tuple[torch.Tensor, bool]:
    """Return the gradient of a step under a fixed seed, and whether the step drew random numbers."""
    device = trainer.model.weights.device
    seed_streams(0, device)
    batch = trainer.batches.sample()
    seed_streams(index, device)
    before = positions(device)
    trainer.backward(batch, index)
    return trainer.model.gradient.clone(), before != positions(device)


def _inspect_data(batches: ClientBatches, device: torch.device) -> tuple[bool, str]:
    """Return whether the data draws random numbers, and which client's data remembers something."""
    draws = False
    for client in np.unique(np.linspace(0, len(batches.sizes) - 1, _CLIENTS).astype(np.int64)).tolist():
        indices = np.arange(min(_EXAMPLES, int(batches.sizes[client])))
        found = []
        for _ in range(2):
            seed_streams(0, device)
            before = positions(device)
            found.append(fingerprint(batches.fetch(client, 0, indices)))
            draws |= before != positions(device)
        if found[0] != found[1]:
            return draws, f"the data of client {client}"
    return draws, ""


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Return the names of attributes that are new, gone or different, each once and without what it holds."""
    different = [path for path in {**before, **after} if before.get(path, _GONE) != after.get(path, _GONE)]
    return list(dict.fromkeys(path.partition("[")[0] for path in different))


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    tolerance = 1e-2 if first.element_size() < 4 else 1e-5
    scale = float(first.nan_to_num().abs().max())
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def remembered(module: nn.Module) -> dict[str, object]:
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
        for name, buffer in part._buffers.items():
            walk.found[f"{start}{name}"] = buffer is None  # a buffer that appears while training is in no flat model
    for kind in dict.fromkeys(type(part) for _, part in parts):
        for name, value in _of_class(kind):
            walk.visit(name, value)
    return walk.found


def metric_counts(module: nn.Module) -> list[int]:
    """Return how often each metric of a module was updated."""
    return [part.update_count for part in module.modules() if isinstance(part, Metric)]


def fingerprint(value: object) -> dict[str, object]:
    """Return all that an object holds.

    >>> fingerprint([1, {"a": 2}]) == fingerprint([1, {"a": 2}]), fingerprint([1]) == fingerprint([2])
    (True, False)
    """
    walk = _Walk()
    walk.visit("", value)
    return walk.found


def _of_class(kind: type) -> Iterator[tuple[str, object]]:
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
        self.found: dict[str, object] = {}
        self.seen: dict[int, object] = {}  # keeps what it has seen alive, so that no number is given twice

    def visit(self, path: str, value: object, depth: int = 0) -> None:
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


def _summary(value: object) -> object:
    """Return what distinguishes two values of one type besides what they hold."""
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


def _held(value: object) -> Iterator[tuple[str, object]]:
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
        for name, held in vars(value).items() if hasattr(value, "__dict__") else ():
            yield f".{name}", held
        for name in getattr(type(value), "__slots__", ()):
            yield f".{name}", getattr(value, name, None)


def _ends(items: list[tuple[object, object]]) -> list[tuple[object, object]]:
    return items if len(items) <= 2 * _ENDS else items[:_ENDS] + items[-_ENDS:]


def _of_tensor(tensor: torch.Tensor) -> object:
    kind = (tuple(tensor.shape), str(tensor.dtype))
    try:
        plain = tensor.detach().reshape(-1)
        if plain.numel() * plain.element_size() > _BYTES:
            return (*kind, repr(widened(plain).sum().item() if plain.is_floating_point() else plain.sum().item()))
        return (*kind, _digest(plain.cpu().contiguous().view(torch.uint8).numpy()))
    except (RuntimeError, NotImplementedError):  # sparse, quantised, without memory
        return kind


def _digest(array: npt.NDArray[np.generic]) -> str:
    data = array.reshape(-1).view(np.uint8)
    if data.nbytes > _BYTES:
        data = np.concatenate([data[: _BYTES // 2], data[-_BYTES // 2 :]])
    return hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
