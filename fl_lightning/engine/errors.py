"""Errors of modules and data, told with their client, their round and what to do."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch import LightningModule

_ADVICE = (
    (
        "Expected more than 1 value per channel",
        "BatchNorm needs two examples in a batch: give each client at least 2 and use a batch size of at least 2, or "
        "use GroupNorm or LayerNorm",
    ),
    ("out of bounds|out of range", "a label or index is too large: correct the data or give the module more classes"),
    ("cannot be multiplied|to have .* channels", "the inputs do not fit the first layers: change one of them"),
    ("same dtype", "the type of the inputs does not fit the module: convert the data or choose another precision"),
    ("not attached to a `Trainer`", "there is no Trainer in a federation: do not use self.trainer while training"),
    ("through the graph a second time", "detach what the module keeps from one step to the next"),
)
_LIBRARIES = ("torch", "lightning", "torchmetrics", "fl_lightning")


class ClientError(ValueError):
    """A module or a data set failed on a client."""


def when(round_index: int) -> str:
    """Return the round as a reader knows it; round 0 is the trial before the first.

    >>> when(0), when(3)
    ('trial before round 1', 'round 3')
    """
    return f"round {round_index}" if round_index else "trial before round 1"


@contextmanager
def naming_client(module: LightningModule, client: int, round_index: int) -> Iterator[None]:
    """Name module, client and round in whatever goes wrong while a client trains.

    Raises:
        ClientError: From the error that the module raised.
    """
    try:
        yield
    except ClientError:
        raise
    except Exception as error:
        text = describe(error, f"{type(module).__name__}.training_step")
        raise ClientError(f"{when(round_index)}, client {client}: {text}") from error


def describe(error: Exception, what: str) -> str:
    """Return what failed, why and where, and what to do about it, in one line."""
    message = " ".join(str(error).split()) or "no message"
    if isinstance(error, StepError):
        return message
    if len(message) > 300:
        message = f"{message[:200]} ... {message[-100:]}"
    place = _place(error)
    advice = next((text for sign, text in _ADVICE if re.search(sign, message)), "correct it there")
    return f"{what} failed{place} with {type(error).__name__}: {message}; {advice}"


class StepError(ValueError):
    """A step returned something that cannot be trained on; its text says all."""


def _place(error: Exception) -> str:
    """Return file and line of the user's code that failed, if any is on the stack."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        folders = Path(frame.filename).parts
        if not any(library in folders for library in _LIBRARIES) and not frame.filename.startswith("<"):
            return f" at {Path(frame.filename).name}:{frame.lineno}"
    return ""
