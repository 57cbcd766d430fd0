"""How much fits on a device: what is free there, what a client takes, and what to do where it was too much."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.evaluation import batch_length
from fl_lightning.parts.protocols import Batch

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d*)?)\s*([KMGT]I?)?B?", re.IGNORECASE)
_UNKNOWN = 1 << 30  # what is taken to be free on a device that does not say
_COPIES = 6  # of the weights of a client in a stack: weights, gradients twice, start, shift, momentum
_SHARE = 0.8  # of what is free; fragments and the libraries' own buffers take the rest
_FOR_DATA = 0.5  # of that, at most, for training data that stays on the device


def num_bytes(text: str) -> int:
    """Return the bytes that a text such as 8GB, 500 MB or 1.5GiB stands for.

    >>> num_bytes("8GB"), num_bytes("1.5 GiB"), num_bytes("2000")
    (8000000000, 1610612736, 2000)
    """
    found = _SIZE.fullmatch(text.strip())
    size = 0 if found is None else int(float(found[1]) * _UNITS[(found[2] or "").upper()])
    if size < 1:
        raise ValueError(f"memory={text!r} must be an amount of memory, such as 8GB or 500MB")
    return size


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device, with what torch keeps for later; None where it does not say."""
    try:
        if device.type == "mps":
            return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
        module = torch.get_device_module(device)
        if device.type in ("cuda", "xpu"):
            kept = module.memory_reserved(device) - module.memory_allocated(device)
            return int(module.mem_get_info(device)[0] + kept)
        return int(torch.accelerator.get_memory_info(device)[0])
    except (AttributeError, AssertionError, RuntimeError, ValueError):  # an older torch, another device
        return None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, is that a device has no memory left; some say so in words alone."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():
            return True
        error = error.__cause__
    return False


def give_back(device: torch.device) -> None:
    """Let torch return what it keeps of a device's memory."""
    empty_cache: Callable[[], None] | None = getattr(torch.get_device_module(device), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()


def _size(batch: Batch) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory that training may take on a device."""

    limit: int  # bytes
    known: str  # where that is from, in words

    @classmethod
    def on(cls, device: torch.device, memory: int | None) -> "Room | None":
        """Return the room on a device; None on a CPU where no limit is given: there it is the caches that matter."""
        free = None if device.type == "cpu" else free_memory(device)
        if memory is not None and (free is None or memory <= free):
            return cls(limit=memory, known="loop.engine.memory")
        if device.type == "cpu":
            return None
        if free is None:
            return cls(limit=_UNKNOWN, known=f"{device.type} does not say what is free")
        return cls(limit=int(_SHARE * free), known=f"free on {device}")

    def holds(self, data: Batch) -> bool:
        """Return whether training data may stay on the device."""
        return _size(data) <= _FOR_DATA * self.limit

    def without(self, data: Batch) -> "Room":
        """Return the room that is left beside some tensors."""
        return Room(limit=max(0, self.limit - _size(data)), known=self.known)


def example_bytes(trainer: ClientTrainer) -> int:
    """Return the bytes that one example leaves in a forward pass until it went backward, measured on a few."""
    weights, kept = trainer.model.weights, dict[int, int]()
    inside = range(weights.data_ptr(), weights.data_ptr() + weights.nbytes)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in inside:
            kept[tensor.data_ptr()] = max(tensor.nbytes, kept.get(tensor.data_ptr(), 0))
        return tensor

    batch = trainer.batches.sample()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.backward(batch, 0)
    return (2 * sum(kept.values()) + _size(batch)) // max(1, batch_length(batch))  # the way back makes as much again


def client_bytes(trainer: ClientTrainer) -> int:
    """Return the bytes that a client takes in a stack, about."""
    longest = int(np.max(trainer.batches.lengths))
    return _COPIES * trainer.model.weights.nbytes + longest * example_bytes(trainer)
