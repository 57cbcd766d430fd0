"""What else the paper may have done on CIFAR-10: augmented images.

The network is used by ``--model.network benchmarks.reproduction.explanations.AugmentedCifarCNN --trust benchmarks``.
"""

import torch
from torch import nn
from typing_extensions import override

from fl_lightning.networks import CifarCNN, Start


class CropAndFlip(nn.Module):
    """Shifts each image by up to 4 pixels and mirrors half of them, in training only."""

    @override
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return images
        number, _, height, width = images.shape
        padded = nn.functional.pad(images, (4, 4, 4, 4))
        down, right = (torch.randint(0, 9, (number, 1), device=images.device) for _ in range(2))
        rows = down + torch.arange(height, device=images.device)
        columns = right + torch.arange(width, device=images.device)
        mirrored = torch.rand(number, 1, device=images.device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        places = torch.arange(number, device=images.device)[:, None, None]
        return padded.movedim(1, -1)[places, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


class AugmentedCifarCNN(nn.Sequential):
    """The CIFAR-10 network behind crop and flip."""

    def __init__(self, num_classes: int = 10, start: Start = "pytorch") -> None:
        super().__init__(CropAndFlip(), *CifarCNN(num_classes, start))
