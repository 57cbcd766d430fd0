"""What training has of its machine: random streams of the process, precision, and what makes a processor faster.

The tunings of a processor change no result; one switch, ``Engine(cpu_tuning=...)``, is for all of them.
"""

import ctypes
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:  # the tunings need neither
    from lightning.fabric import Fabric
    from lightning.pytorch import LightningModule

_CONVERTING = ("64-true", "16-true", "bf16-true")
_OTHERS = ("32-true", "16-mixed", "bf16-mixed")
_TRIM_THRESHOLD = -1  # parameters of mallopt, from malloc.h
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
PINNING = ["cuda", "xpu"]  # devices that copy from pinned memory without waiting
_PINNED_BYTES = 64 << 20  # at most: what was pinned stays so
_KEEP_BELOW, _KEEP_ALWAYS = 1 << 30, (1 << 31) - 1


def pinned(batch: object) -> object:
    """Return a batch in memory from which a device copies while the processor goes on."""
    return tree_map(_pinned, batch)


def _pinned(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.nbytes <= _PINNED_BYTES:
        return leaf.pin_memory()
    return leaf


def num_nodes(fabric: "Fabric") -> int:
    """Return on how many machines the processes of a Fabric run; a strategy of one device says nothing about it."""
    return max(1, int(getattr(fabric.strategy, "num_nodes", 1)))


def seed_streams(seed: int, device: torch.device) -> None:
    """Seed torch, numpy and Python, so that what is drawn next depends on the seed alone."""
    # Where no device is at work, torch.manual_seed formats a stack trace for later: longer than a small step.
    seed_torch = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed_torch(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the stream that users' code draws from
    random.seed(seed)


def positions(device: torch.device) -> tuple[object, ...]:
    """Return where the streams are: equal as long as nobody drew from them."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    numpy_state = (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"])
    own = _device_stream(device)
    on_device = b"" if own is None else own.numpy().tobytes()
    return torch.get_rng_state().numpy().tobytes(), on_device, numpy_state, random.getstate()


def _device_stream(device: torch.device) -> torch.Tensor | None:
    """Return where the stream of a device is; a CPU has none besides torch's."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    state: torch.Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


@contextmanager
def kept_streams(device: torch.device) -> Iterator[None]:
    """Leave the streams as they were found, whatever is seeded and drawn inside."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    python_state, device_state = random.getstate(), _device_stream(device)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        if device_state is not None:
            place = () if device.type == "mps" else (device,)
            torch.get_device_module(device).set_rng_state(device_state, *place)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


class TrainingPrecision:
    """Trains in the precision that Fabric was given.

    ``64-true``, ``16-true`` and ``bf16-true`` convert the module and the batches, so that weights, updates and the
    global model have that type, and set torch's default type. That default belongs to the whole process, so it is set
    around a whole round and not by single threads. ``16-mixed`` and ``bf16-mixed`` leave the weights in 32 bits and
    choose a type for each operation, in each thread.
    """

    def __init__(self, fabric: "Fabric") -> None:
        self._fabric = fabric
        self._plugin = fabric.strategy.precision
        name = str(self._plugin.precision)
        if name not in (*_CONVERTING, *_OTHERS):
            raise ValueError(f"fabric.precision={name} is not supported: use one of {', '.join(_OTHERS + _CONVERTING)}")
        self._converts = name in _CONVERTING

    def module(self, module: "LightningModule") -> "LightningModule":
        """Return the module on its device, converted."""
        placed = cast("LightningModule", self._fabric.to_device(module))
        return cast("LightningModule", self._plugin.convert_module(placed)) if self._converts else placed

    def batch(self, batch: object) -> object:
        """Return a batch on its device, converted."""
        placed = self._fabric.to_device(batch)
        return self._plugin.convert_input(placed) if self._converts else placed

    def of_step(self) -> AbstractContextManager[object]:
        """Return the context of a single step, which threads enter on their own."""
        return nullcontext() if self._converts else self._fabric.autocast()

    def of_round(self) -> AbstractContextManager[object]:
        """Return the context around all that is done with the module in a round."""
        return self._fabric.autocast() if self._converts else nullcontext()


@contextmanager
def tuned(module: nn.Module, random: bool) -> Iterator[None]:
    """Arrange a module for the time of the context; the order of the random numbers that it draws is kept."""
    with pool_before_relu(module), plain_dropout(module) if random else nullcontext():
        yield


def keep_freed_memory() -> bool:
    """Ask glibc to keep what is freed; return whether that was possible.

    The activations of a step are tens of megabytes. By default glibc maps such blocks from the system and gives them
    back when they are freed, so each step pays again for clearing every page. Where there is no glibc, nothing happens;
    nor does it where the environment already sets the allocator (``MALLOC_*``, or another one by ``LD_PRELOAD``).
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "alloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  there only in glibc
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # One arena: those of other threads are cut into heaps of 64 MB and give large blocks back.
    mallopt(_ARENA_MAX, 1)
    return bool(mallopt(_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP_ALWAYS))


def channels_last(batch: object) -> object:
    """Return a batch whose images (four dimensions) have their channels innermost in memory; values stay the same.

    Convolutions then run in that layout throughout, whatever the layout of their weights.

    >>> channels_last((torch.zeros(2, 3, 4, 4), torch.zeros(2)))[0].stride()
    (48, 1, 12, 3)
    """
    return tree_map(lambda leaf: leaf.to(memory_format=torch.channels_last) if _is_image(leaf) else leaf, batch)


def as_it_is(batch: object) -> object:
    """Return the batch."""
    return batch


def has_images(batch: object) -> bool:
    """Return whether a batch has images.

    >>> has_images((torch.zeros(2, 3, 4, 4), torch.zeros(2))), has_images(torch.zeros(2, 5))
    (True, False)
    """
    return any(_is_image(leaf) for leaf in tree_leaves(batch))


def _is_image(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim == 4 and leaf.is_floating_point()


@contextmanager
def plain_dropout(module: nn.Module) -> Iterator[None]:
    """Let dropout see images in plain layout.

    Random numbers fill a tensor in the order of its memory, so the same seed would drop other values otherwise.
    """
    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(part, _DropoutNd):
                for hook in (part.register_forward_pre_hook(_to_plain), part.register_forward_hook(_from_plain)):
                    stack.callback(hook.remove)
        yield


def _to_plain(_: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (inputs[0].contiguous(),)


def _from_plain(_: nn.Module, __: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output.to(memory_format=torch.channels_last) if _is_image(output) else output


@contextmanager
def pool_before_relu(module: nn.Module) -> Iterator[None]:
    r"""Swap each ReLU that a maximum pooling follows directly in a ``Sequential``, for the time of the context.

    .. math:: \max_i \max(x_i, 0) = \max(\max_i x_i, 0)

    Values and gradients are the same bit for bit, and the rectifier sees a quarter of the values.

    >>> network = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    >>> with pool_before_relu(network):
    ...     print([type(layer).__name__ for layer in network])
    ['MaxPool2d', 'ReLU']
    >>> type(network[0]).__name__
    'ReLU'
    """
    swapped = [(part, place) for part in module.modules() for place in _rectifiers(part)]
    for part, place in swapped:
        _swap(part, place)
    try:
        yield
    finally:
        for part, place in swapped:
            _swap(part, place)


def _rectifiers(part: nn.Module) -> list[str]:
    """Return the names of the rectifiers of a Sequential that can change places with the layer behind them."""
    if not isinstance(part, nn.Sequential) or type(part).forward is not nn.Sequential.forward:
        return []
    layers = list(part.named_children())
    return [
        name
        for (name, layer), (_, following) in pairwise(layers)
        if type(layer) is nn.ReLU
        and type(following) is nn.MaxPool2d
        and not following.return_indices
        and not (_watched(layer) or _watched(following))
    ]


def _swap(part: nn.Module, place: str) -> None:
    names = list(part._modules)
    following = names[names.index(place) + 1]
    layers = part._modules
    layers[place], layers[following] = layers[following], layers[place]


def _watched(layer: nn.Module) -> bool:
    """Return whether somebody hooked into a layer and would see the difference."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
