"""Images with their channels innermost in memory, where that is faster and changes nothing."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map


def channels_last(batch: Any) -> Any:
    """Return a batch whose images (four dimensions) have their channels innermost in memory; values stay the same.

    Convolutions then run in that layout throughout, whatever the layout of their weights.

    >>> channels_last((torch.zeros(2, 3, 4, 4), torch.zeros(2)))[0].stride()
    (48, 1, 12, 3)
    """
    return tree_map(lambda leaf: leaf.to(memory_format=torch.channels_last) if _is_image(leaf) else leaf, batch)


def as_it_is(batch: Any) -> Any:
    """Return the batch."""
    return batch


def has_images(batch: Any) -> bool:
    """Return whether a batch has images.

    >>> has_images((torch.zeros(2, 3, 4, 4), torch.zeros(2))), has_images(torch.zeros(2, 5))
    (True, False)
    """
    return any(_is_image(leaf) for leaf in tree_leaves(batch))


def _is_image(leaf: Any) -> bool:
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
