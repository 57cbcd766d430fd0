"""One step of a user's module: the loss it returns, and errors that name client, round and what to do."""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from lightning.pytorch import LightningModule

from fl_lightning.parts.protocols import Batch

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


def training_loss(module: LightningModule, batch: Batch, index: int) -> torch.Tensor:
    """Return the loss of a training step, whatever form the module returns it in."""
    return loss_of(module, run_step(module.training_step, batch, index))


def loss_of(module: LightningModule, output: object) -> torch.Tensor:
    """Return the loss in what a training step returned."""
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        raise StepError(
            f"{type(module).__name__}.training_step must return the loss as a scalar tensor, or a dict with one under "
            f"'loss', but returned {_described(output)}"
        )
    return loss


def differentiable_loss(module: LightningModule, batch: Batch, index: int) -> torch.Tensor:
    """Return the loss of a training step that a gradient is wanted of."""
    loss = training_loss(module, batch, index)
    if not loss.requires_grad:
        raise StepError(
            f"{type(module).__name__}.training_step returned a loss without a gradient: return it before detach(), "
            "item() or a new tensor cuts it off from the parameters, and compute it outside torch.no_grad()"
        )
    return loss


def run_step(step: Callable[..., object], batch: Batch, index: int) -> object:
    """Call a step of a module with the number of the batch, where it takes one, as Lightning does."""
    function = getattr(step, "__func__", step)
    return step(batch, index) if _takes_index(function, function is not step) else step(batch)


@lru_cache(maxsize=256)
def _takes_index(function: Callable[..., object], bound: bool) -> bool:
    """Return whether a step takes more than the batch; one that is bound to its module takes the module as well."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return True
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(by_position) - bound > 1


def _described(output: object) -> str:
    if isinstance(output, dict):
        return f"a dict with the keys {sorted(map(str, output))}"
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}: take its mean"
    return "None" if output is None else f"{type(output).__name__}"
