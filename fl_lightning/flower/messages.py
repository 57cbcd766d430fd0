"""Messages between server and nodes: what is in them, and what is believed of a reply."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

TRAIN, EVALUATE = "train", "evaluate"
WHO = "query.who"
LOSS, GRADIENT = "query.loss", "query.gradient"
KEYS, SHARES = "query.keys", "query.shares"  # of a secure sum
MASKED, REVEAL = "train.masked", "query.reveal"
_VALUES, _ARRAYS = "values", "arrays"
_MOST_METRICS = 50
_COLUMN = re.compile(r"[\w./ -]{1,100}")  # a metric's name
_LONGEST_ENTRY = 4096  # bytes; a sealed share has some 400
_LONGEST_ERROR = 300
_HEADER_BYTES = 4096  # more than numpy ever writes before the numbers

Value = int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]
Values = Mapping[str, Value]
Content = tuple[Values, Mapping[str, torch.Tensor]]  # of a message
Found = TypeVar("Found")
Written = dict[int, tuple[torch.Tensor, Array]]  # by identity; the tensor is kept, or another could get its identity


class BadMessageError(ValueError):
    """A message that is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a client sends back, checked for its form."""

    num_steps: int
    loss: float
    tensors: tuple[torch.Tensor, ...]


def packed(
    values: Values, tensors: Mapping[str, torch.Tensor] | None = None, written: Written | None = None
) -> RecordDict:
    """Return the content of a message; tensors go as bytes, because numpy does not know all types that torch has.

    ``written`` has the tensors of earlier messages: a model that a hundred clients get is written and hashed once.
    """
    content = RecordDict({_VALUES: ConfigRecord(dict(values))})
    known: Written = {} if written is None else written
    if tensors:
        for tensor in tensors.values():
            if id(tensor) not in known:
                known[id(tensor)] = (tensor, Array(_bytes(tensor)))
        content[_ARRAYS] = ArrayRecord({name: known[id(tensor)][1] for name, tensor in tensors.items()})
    return content


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    if not tensor.numel():
        return np.empty(0, dtype=np.uint8)  # of which torch makes no other type
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy()


def value(message: Message, name: str, kind: type[Found]) -> Found:
    """Return one of the values of a message."""
    found = _part(message, _VALUES, ConfigRecord).get(name)
    if type(found) is not kind:  # a bool is no int
        raise BadMessageError(f"{name} is a {type(found).__name__} instead of a {kind.__name__}")
    return found


def entries(message: Message, name: str, kind: type[Found], length: int | None = None) -> list[Found]:
    """Return a list of values of a message."""
    found = value(message, name, list)
    if any(type(entry) is not kind for entry in found) or (length is not None and len(found) != length):
        raise BadMessageError(f"{name} is not a list of {'' if length is None else f'{length} '}{kind.__name__}")
    if any(isinstance(entry, (str, bytes)) and len(entry) > _LONGEST_ENTRY for entry in found):
        raise BadMessageError(f"{name} has an entry of over {_LONGEST_ENTRY:,} bytes")
    return list(found)


def has_tensor(message: Message, name: str) -> bool:
    """Return whether a message has a tensor of this name."""
    return name in _part(message, _ARRAYS, ArrayRecord)


def tensor(message: Message, name: str, like: torch.Tensor) -> torch.Tensor:
    """Return one of the tensors of a message, with the shape, type and device of another one.

    The length is compared before anything is read, so a huge array costs no second copy.
    """
    found = _part(message, _ARRAYS, ArrayRecord).get(name)
    wanted = like.numel() * like.element_size()
    if not isinstance(found, Array):
        raise BadMessageError(f"{name} is missing")
    if found.dtype != "uint8" or tuple(found.shape) != (wanted,) or len(found.data) > wanted + _HEADER_BYTES:
        raise BadMessageError(f"{name} has {len(found.data)} bytes of shape {tuple(found.shape)} instead of {wanted}")
    try:
        numbers = found.numpy()
    except Exception as error:  # numpy reads the header of an array as Python: a damaged one raises all kinds
        raise BadMessageError(f"{name} cannot be read: {str(error).partition(chr(10))[0]}") from None
    if numbers.dtype != np.uint8 or numbers.shape != (wanted,):
        raise BadMessageError(f"{name} has shape {numbers.shape} instead of {(wanted,)}")
    if not wanted:
        return torch.empty_like(like)
    return torch.from_numpy(numbers.copy()).view(like.dtype).reshape(like.shape).to(like.device)


def _part(message: Message, name: str, kind: type[Found]) -> Found:
    part = message.content.get(name) if message.has_content() else None
    if not isinstance(part, kind):
        raise BadMessageError(f"a message without {name}")
    return part


def read_sender(message: Message) -> int:
    """Return who answers; an error is no answer."""
    if message.has_error():
        words = " ".join(str(message.error.reason)[: 10 * _LONGEST_ERROR].split())  # they end up in the server's log
        text = "".join(letter for letter in words if letter.isprintable())[:_LONGEST_ERROR]
        raise BadMessageError(f"answers with an error: {text}")
    return value(message, "client", int)


def read_reply(message: Message, likes: Mapping[str, torch.Tensor]) -> Reply:
    """Return the reply of a client; ``likes`` has, for each tensor that is wanted, one of its shape and type."""
    loss = value(message, "loss", float)
    return Reply(
        num_steps=value(message, "num_steps", int),
        loss=loss if math.isfinite(loss) else math.nan,
        tensors=tuple(tensor(message, name, like) for name, like in likes.items()),
    )


def read_metrics(message: Message) -> dict[str, float]:
    """Return the metrics that a client sends, unless they are too many or could not be columns."""
    names = entries(message, "names", str)
    if len(names) > _MOST_METRICS or not all(_COLUMN.fullmatch(name) for name in names):
        raise BadMessageError("sends metrics whose names are no names of columns")
    return dict(zip(names, entries(message, "numbers", float, len(names)), strict=True))
