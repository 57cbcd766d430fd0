"""How much a step computes."""

import math
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}  # name: position of the first factor


class CountOperations(TorchDispatchMode):
    """Counts the floating-point operations of matrix products and convolutions while it is active.

    >>> import torch
    >>> with CountOperations() as counter:
    ...     _ = torch.zeros(5, 3) @ torch.zeros(3, 2)
    >>> counter.total
    60
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and add what it computes."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            self.total += 2 * result.numel() * args[_PRODUCTS[name]].shape[-1]
        elif name == "convolution":
            self.total += 2 * result.numel() * math.prod(args[1].shape[1:])
        elif name == "convolution_backward":
            gradients = sum(bool(wanted) for wanted in args[-1][:2])
            self.total += gradients * 2 * args[0].numel() * math.prod(args[2].shape[1:])
        return result
