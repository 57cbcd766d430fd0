"""A user's module as a client trains it: its parameters as one flat vector, the loss of its step, and its errors."""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MethodType

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.parameter import is_lazy

from fl_lightning.parts.protocols import Batch
from fl_lightning.types import ModelState

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
    ("out of memory", "use a smaller loop.batch_size, a smaller model or another device"),
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
    """Name module, client and round in whatever goes wrong while a client trains: it becomes a ClientError."""
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
    advice = next((text for sign, text in _ADVICE if re.search(sign, message)), "correct it there")
    return f"{what} failed{_place(error)} with {type(error).__name__}: {message}; {advice}"


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
    takes_index = _takes_index(step.__func__, True) if isinstance(step, MethodType) else _takes_index(step, False)
    return step(batch, index) if takes_index else step(batch)


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
    return "None" if output is None else type(output).__name__


class FlatModel:
    """A module whose trainable parameters, gradients and float buffers are slices of three flat tensors.

    Loading a client's starting point is one copy, and reading its update one subtraction; there is no state dict, no
    deep copy and no allocation for each client. Integer buffers (counters) start each client from what they were in the
    beginning, so that the order of the clients has no meaning; frozen parameters stay as they are. A buffer that the
    module assigns anew, ``self.mean = 0.9 * self.mean + ...``, is taken back into the flat tensor by :meth:`gather`.
    """

    def __init__(self, module: LightningModule) -> None:
        _refuse_lazy(module)
        self.module = module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError(f"{type(module).__name__} has no parameter that requires a gradient: nothing to train")
        self.weights = _flatten(self.parameters)
        self.gradient = torch.zeros_like(self.weights)
        self.gradients: list[torch.Tensor] = []  # of the single parameters
        offset = 0
        for parameter in self.parameters:
            part = slice(offset, offset + parameter.numel())
            parameter.data = self.weights[part].view(parameter.shape)
            parameter.grad = self.gradient[part].view(parameter.shape)
            self.gradients.append(parameter.grad)
            offset = part.stop
        self.buffers, self._views = self._view_buffers()
        self._counters = [
            (owner, name, buffer, buffer.clone())
            for owner, name, buffer in _places(module)
            if not buffer.is_floating_point() and buffer.numel()
        ]

    def _view_buffers(self) -> tuple[torch.Tensor, list[tuple[nn.Module, str, torch.Tensor]]]:
        places = [place for place in _places(self.module) if place[2].is_floating_point()]
        flat = _flatten([buffer for _, _, buffer in places]) if places else self.weights.new_empty(0)
        offset, views = 0, []
        for owner, name, buffer in places:
            view = flat[offset : offset + buffer.numel()].view(buffer.shape)
            owner._buffers[name] = view
            views.append((owner, name, view))
            offset += buffer.numel()
        return flat, views

    def load(self, weights: torch.Tensor, buffers: torch.Tensor) -> None:
        """Make these the weights and buffers of the module."""
        for owner, name, view in self._views:
            if owner._buffers[name] is not view:
                owner._buffers[name] = view
        self.weights.copy_(weights)
        self.buffers.copy_(buffers)
        for owner, name, counter, beginning in self._counters:
            if owner._buffers[name] is not counter:
                owner._buffers[name] = counter
            counter.copy_(beginning)

    def gather(self) -> torch.Tensor:
        """Return the float buffers, after taking back those that the module has replaced by assignment."""
        for owner, name, view in self._views:
            buffer = owner._buffers[name]
            if buffer is view:
                continue
            if not isinstance(buffer, torch.Tensor) or buffer.shape != view.shape:
                found = tuple(buffer.shape) if isinstance(buffer, torch.Tensor) else type(buffer).__name__
                raise StepError(
                    f"{type(self.module).__name__} replaced its buffer {name!r} of shape {tuple(view.shape)} by one of "
                    f"shape {found}, but a buffer is averaged over clients: keep its shape, or use an attribute instead"
                )
            view.copy_(buffer.detach())
            owner._buffers[name] = view
        return self.buffers

    def moved_parameters(self) -> list[str]:
        """Return the names of parameters whose data somebody has replaced, so that steps no longer reach them."""
        places, ends = self.weights.data_ptr(), 0
        moved = []
        for parameter in self.parameters:
            if parameter.data_ptr() != places + ends * self.weights.element_size() and parameter.numel():
                moved.append(next(name for name, other in self.module.named_parameters() if other is parameter))
            ends += parameter.numel()
        return moved

    def state(self) -> ModelState:
        """Return a copy of the weights and buffers."""
        return ModelState(self.weights.clone(), self.buffers.clone())


def _places(module: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Return the buffers of a module with their owners and names."""
    return [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
        if buffer is not None
    ]


def _refuse_lazy(module: nn.Module) -> None:
    named = [*module.named_parameters(), *module.named_buffers()]
    lazy = next((name for name, tensor in named if is_lazy(tensor)), None)
    if lazy is not None:
        raise ValueError(
            f"{type(module).__name__} has a lazy module whose {lazy!r} has no shape yet: run one batch through the "
            "module before training, or use the module with its sizes given (Linear instead of LazyLinear)"
        )


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) > 1:
        raise ValueError(f"parameters and buffers must share one dtype and device, got {sorted(map(str, kinds))}")
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).contiguous()
