"""What else the paper may have done on CIFAR-10: clients of equal size, and augmented images.

``python -m benchmarks.reproduction.explanations equal.json [ROOT]`` writes a split for ``GivenIndices``; the network is
used by ``--model.network benchmarks.reproduction.explanations.AugmentedCifarCNN --trust benchmarks``.
"""

import json
import sys
from pathlib import Path

import numpy as np
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


def equal_sizes(num_clients: int = 20, num_each: int = 5000, alpha: float = 0.1, seed: int = 0) -> list[list[int]]:
    """Return clients of equal size, each with its own Dirichlet mix of ten classes as far as these last.

    >>> {len(part) for part in equal_sizes(4, 20)}
    {50}
    """
    rng = np.random.default_rng(seed)
    # CIFAR-10's order is not by class: numbers within classes are turned into places by the caller.
    left = np.full(10, num_each)
    sizes = []
    for _ in range(num_clients):
        mix, part = rng.dirichlet(np.full(10, alpha)), np.zeros(10, dtype=np.int64)
        for _ in range(10 * num_each // num_clients):
            chances = np.where(left > 0, mix + 1e-12, 0.0)
            label = rng.choice(10, p=chances / chances.sum())
            part[label] += 1
            left[label] -= 1
        sizes.append(part)
    ends = np.cumsum(sizes, axis=0)
    parts = [[(label, place) for label in range(10) for place in range(e[label] - s[label], e[label])]
             for e, s in zip(ends, sizes, strict=True)]  # fmt: skip
    return [[label * num_each + place for label, place in part] for part in parts]


def main(path: str) -> None:
    """Write the split of CIFAR-10 under ``datasets``."""
    from fl_lightning.data.cifar10 import load_cifar10

    labels = load_cifar10(sys.argv[2] if len(sys.argv) > 2 else "datasets").train_labels.numpy()
    by_class = np.argsort(labels, kind="stable")
    Path(path).write_text(json.dumps([by_class[part].tolist() for part in equal_sizes()]))


if __name__ == "__main__":
    main(sys.argv[1])
