"""One flat vector that the parameters of a model view into."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule

from fl_lightning.types import ModelState


class FlatModel:
    """A module whose trainable parameters, gradients and float buffers are slices of three flat tensors.

    Loading a client's starting point is one copy, and reading its update one subtraction; there is no state dict, no
    deep copy and no allocation for each client. Integer buffers (counters) start each client from what they were in the
    beginning, so that the order of the clients has no meaning; frozen parameters stay as they are.
    """

    def __init__(self, module: LightningModule) -> None:
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
        self.buffers = self._view_buffers()
        self._counters = [
            (buffer, buffer.clone()) for buffer in module.buffers() if not buffer.is_floating_point() and buffer.numel()
        ]

    def _view_buffers(self) -> torch.Tensor:
        places = [
            (owner, name, buffer)
            for owner in self.module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
            if buffer.is_floating_point()
        ]
        flat = _flatten([buffer for _, _, buffer in places]) if places else self.weights.new_empty(0)
        offset = 0
        for owner, name, buffer in places:
            owner._buffers[name] = flat[offset : offset + buffer.numel()].view(buffer.shape)
            offset += buffer.numel()
        return flat

    def load(self, weights: torch.Tensor, buffers: torch.Tensor) -> None:
        """Make these the weights and buffers of the module."""
        self.weights.copy_(weights)
        self.buffers.copy_(buffers)
        for counter, beginning in self._counters:
            counter.copy_(beginning)

    def state(self) -> ModelState:
        """Return a copy of the weights and buffers."""
        return ModelState(self.weights.clone(), self.buffers.clone())


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) > 1:
        raise ValueError(f"parameters and buffers must share one dtype and device, got {sorted(map(str, kinds))}")
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).contiguous()
