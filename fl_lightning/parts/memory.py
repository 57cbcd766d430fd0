"""The memory of a part: the attributes that a resumed run needs."""

import copy
import io
import zipfile
from collections.abc import Iterable
from typing import Any, BinaryIO, ClassVar, TypeAlias

import numpy as np
import torch
from typing_extensions import override

State: TypeAlias = dict[str, Any]  # what a part saves: tensors, numbers, strings and containers of them
_ARRAY = "numpy array"  # marks one: checkpoints are read with weights_only=True, so a file holds it as a tensor
_FRESH = "_memory_at_first"  # attribute of a part that has been in a run
_PLAIN = (bool, int, float, str, bytes, type(None))


class Remembers:
    """Saves and brings back the attributes that a part names in ``memory``.

    An attribute may hold a tensor, an array, a number, a string, None, a dict, list, tuple or set of these, or another
    part with memory. What is saved is a copy, under the attribute's name without a leading underscore. A tensor comes
    back on the device and with the type of the one that it replaces, and must have its shape; an empty one stands for
    "nothing learned yet" and fits any shape. A class adds its names to those of its bases.

    >>> class Arrivals(Remembers):
    ...     memory = ("num_rounds", "_counts")
    ...
    ...     def __init__(self):
    ...         self.num_rounds, self._counts = 0, np.zeros(3, dtype=int)
    >>> first, second = Arrivals(), Arrivals()
    >>> first.num_rounds, first._counts[1] = 4, 2
    >>> second.load_state_dict(first.state_dict())
    >>> second.num_rounds, second._counts.tolist()
    (4, [0, 2, 0])
    """

    memory: ClassVar[tuple[str, ...]] = ()

    @override
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = cls.__dict__.get("memory", ())
        if not isinstance(own, tuple) or not all(isinstance(name, str) for name in own):
            raise TypeError(f"{cls.__name__}.memory={own!r} must be a tuple of attribute names, such as ('counts',)")
        inherited = [name for base in cls.__bases__ if issubclass(base, Remembers) for name in base.memory]
        cls.memory = tuple(dict.fromkeys([*inherited, *own]))
        if len({_key(name) for name in cls.memory}) < len(cls.memory):
            raise TypeError(f"{cls.__name__}.memory={cls.memory} names two attributes alike but for an underscore")

    def state_dict(self) -> State:
        """Return a copy of the memory, as tensors, numbers, strings and containers of them."""
        kind = type(self)  # not the instance, whose own attribute may be called memory
        return {_key(name): _saved(f"{kind.__name__}.{name}", getattr(self, name)) for name in kind.memory}

    def load_state_dict(self, state: State) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If it is the memory of another kind of part, or of another size.
        """
        kind = type(self)
        saved = {_key(name): value for name, value in state.items()}
        wanted = [_key(name) for name in kind.memory]
        if saved.keys() != set(wanted):
            raise ValueError(
                f"the checkpoint does not fit {kind.__name__}: it holds {_listed(saved)} instead of {_listed(wanted)}: "
                "resume with the settings and the version that wrote it, or start anew"
            )
        for name in kind.memory:
            setattr(self, name, _restored(f"{kind.__name__}.{name}", getattr(self, name), saved[_key(name)]))

    def start_anew(self) -> None:
        """Take back the memory with which the part first entered a run, so that a second run learns from itself alone.

        What the part makes in its ``setup`` is not there yet when it first enters, and is left alone.
        """
        present = {name: getattr(self, name) for name in type(self).memory if hasattr(self, name)}
        for value in present.values():
            start_anew(value)
        plain = {name: value for name, value in present.items() if not hasattr(value, "state_dict")}
        fresh = vars(self).setdefault(_FRESH, copy.deepcopy(plain))
        vars(self).update(copy.deepcopy(fresh))


def start_anew(part: object) -> None:
    """Let a part with memory begin as it first did: one of ours, or anything with the methods of a state dict."""
    if hasattr(part, "start_anew"):
        part.start_anew()
    elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        fresh = vars(part).setdefault(_FRESH, copy.deepcopy(part.state_dict()))
        if fresh:
            part.load_state_dict(copy.deepcopy(fresh))


def encode(content: object) -> bytes:
    """Return what ``torch.save`` makes of tensors, numbers, strings and containers of them."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def decode(file: BinaryIO) -> Any:
    """Return what ``torch.save`` made, without running anything in it and without unfolding it.

    ``torch.save`` compresses nothing. A file of a few bytes whose records unfold to many is somebody else's.

    Raises:
        ValueError: If it holds compressed records, or is of an old format, whose size nothing shows.
    """
    length = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            packed = any(each.compress_type != zipfile.ZIP_STORED for each in records)
            if packed or sum(each.file_size for each in records) > length:
                raise ValueError("it holds compressed records")
            pickles = [archive.read(each) for each in records if each.filename.endswith(".pkl")]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"it is not what torch.save writes ({error})") from None
    if any(b"bytearray" in each for each in pickles):  # which torch lets a file make of any length
        raise ValueError("it holds a bytearray")
    file.seek(0)
    return torch.load(file, weights_only=True, map_location="cpu")


def _key(name: str) -> str:
    return name.lstrip("_")


def _saved(where: str, value: object) -> object:
    if isinstance(value, Remembers):
        return value.state_dict()
    return copy.deepcopy(value.state_dict()) if hasattr(value, "state_dict") else _copied(where, value)


def _copied(where: str, value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_ARRAY: torch.from_numpy(value.copy())}
    if isinstance(value, np.generic):
        return value.item()
    # Exact types: a Counter or an enumeration would be written, but not be read again.
    if type(value) is dict:
        return {_copied(where, key): _copied(f"{where}[{key!r}]", entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
        return type(value)(_copied(where, entry) for entry in value)
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"{where} holds a {type(value).__name__}, which a checkpoint cannot keep: use tensors, arrays of numbers, "
        "plain values and dict, list, tuple or set of these; name another part as an attribute of its own"
    )


def _restored(where: str, present: Any, saved: object) -> object:
    if hasattr(present, "state_dict"):
        present.load_state_dict(saved)
        return present
    if present is not None and saved is not None and _kind(present) != _kind(saved):
        raise ValueError(
            f"the checkpoint does not fit: {where} is a {_kind(saved)} in it, but a {_kind(present)} is wanted"
        )
    if isinstance(saved, torch.Tensor):
        return _fitted(where, present, saved)
    if isinstance(saved, dict):
        if saved.keys() == {_ARRAY}:
            like = None if present is None else torch.from_numpy(present.copy())
            return _fitted(where, like, saved[_ARRAY]).cpu().numpy()
        present = present or {}
        missing = [key for key, entry in present.items() if isinstance(entry, torch.Tensor) and key not in saved]
        if missing:
            listed = f"lacks {_listed(missing)}, it holds {_listed(saved)}"
            raise ValueError(f"the checkpoint does not fit: {where} {listed}")
        return {key: _restored(f"{where}[{key!r}]", present.get(key), entry) for key, entry in saved.items()}
    if isinstance(saved, list | tuple | set):
        return type(saved)(_restored(where, None, entry) for entry in saved)
    return saved


def _fitted(where: str, present: torch.Tensor | None, saved: torch.Tensor) -> torch.Tensor:
    """Return a copy of a saved tensor that can replace the present one, in whose own place others may be looking."""
    if present is None:
        return saved.clone()
    if not present.numel() or not saved.numel():
        return saved.to(device=present.device, copy=True)
    if saved.shape != present.shape or not torch.can_cast(saved.dtype, present.dtype):
        raise ValueError(
            f"the checkpoint does not fit: {where} has shape {tuple(saved.shape)} and type {saved.dtype} in it, but "
            f"{tuple(present.shape)} and {present.dtype} are wanted: resume with the same clients and the same model"
        )
    return saved.to(device=present.device, dtype=present.dtype, copy=True)


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray) or (isinstance(value, dict) and value.keys() == {_ARRAY}):
        return _ARRAY
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "number" if isinstance(value, bool | int | float | np.generic) else type(value).__name__


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(repr(name) for name in names)) or "nothing"
