"""One flat vector that the parameters of a model view into."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.parameter import is_lazy

from fl_lightning.engine.step import StepError
from fl_lightning.types import ModelState


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
