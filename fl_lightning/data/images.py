"""Images as tensors, stored in one file, and how they become a federation."""

import hashlib
import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.fetching import workspace
from fl_lightning.output import open_plain
from fl_lightning.parts.bases import DataSource, Partition
from fl_lightning.parts.memory import decode
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector


@dataclass(frozen=True, kw_only=True)
class Images:
    """A labelled image data set as it is stored: bytes, not yet normalised."""

    train_images: torch.Tensor  # uint8, (N, channels, height, width)
    train_labels: torch.Tensor  # int64, (N,)
    test_images: torch.Tensor
    test_labels: torch.Tensor

    def digests(self) -> tuple[str, ...]:
        """Return the sha256 of each field in the order above; images as they lie in memory, labels as one byte each."""
        fields = (each.to(torch.uint8).contiguous().numpy() for each in vars(self).values())
        return tuple(hashlib.sha256(field.data).hexdigest() for field in fields)


class ImageSource(DataSource):
    """A published data set of images.

    Args:
        partition: How the training examples are split among the clients.
        root: Folder of the data; fetched into it when absent.
    """

    num_classes = 10
    class_sizes: tuple[int, ...]  # of the training examples
    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]

    def __init__(self, partition: Partition, root: str = "datasets") -> None:
        self.partition, self.root = partition, root

    @staticmethod
    @abstractmethod
    def read(root: str | Path) -> Images:
        """Return the images of a root; what is not there is fetched first."""

    def load(self, seed: int) -> TensorFederation:
        """Return normalised images of shape (channels, height, width), split among the clients."""
        images = self.read(self.root)
        train = (normalise(images.train_images, self.mean, self.std), images.train_labels)
        test = (normalise(images.test_images, self.mean, self.std), images.test_labels)
        return TensorFederation(train, test, split(images.train_labels, self.partition, seed))


def save_images(images: Images, path: Path, extra: dict[str, str], temporary: Path) -> None:
    """Store the images and some strings as one file, made in the folder ``temporary``; it is complete or not there."""
    torch.save({**vars(images), **extra}, temporary / path.name)
    os.replace(temporary / path.name, path)


def keep_images(images: Images, path: Path, extra: dict[str, str]) -> None:
    """Store the images for the next time, unless the folder is read-only, as a shared one may be."""
    if os.access(path.parent, os.W_OK):
        with workspace(path.parent) as temporary:
            save_images(images, path, extra, temporary)


def read_images(path: Path) -> tuple[Images, dict[str, str]]:
    """Read what :func:`save_images` wrote; a file with anything but tensors and strings in it is refused."""
    try:
        with open_plain(path) as file:
            content = decode(file)
        images = Images(**{name: content.pop(name) for name in Images.__dataclass_fields__})
    except Exception as error:  # a damaged file breaks the loader in many ways
        raise ValueError(f"{path} is damaged ({type(error).__name__}); delete it and start again") from None
    return images, content


def torchvision_datasets() -> Any:
    """Return torchvision's data sets, which know addresses and checksums."""
    from torchvision import datasets  # imported here: costs seconds, and only the first load needs it

    return datasets


def read_picture(path: str | Path) -> npt.NDArray[np.uint8]:
    """Return the pixels of a picture in three colours, whatever its own mode, (height, width, 3)."""
    from PIL import Image, UnidentifiedImageError  # imported here: only the first load needs it

    try:
        with Image.open(path, formats=["PNG"]) as picture:  # to read some other formats starts other programs
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and start again") from None


def normalise(images: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """Return float32 images ``(x / 255 - mean) / std``, one mean and std for each channel.

    >>> normalise(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), (0.5,), (0.25,)).item()
    2.0
    """
    shape = (1, len(mean), 1, 1)
    floats = images.to(torch.float32).div_(255)
    return floats.sub_(torch.tensor(mean).view(shape)).div_(torch.tensor(std).view(shape))


def split(labels: torch.Tensor, partition: Partition, seed: int) -> list[IntVector]:
    """Draw the partition from the seed's own stream for it."""
    return partition.split(labels.numpy(), generator(seed, Purpose.PARTITION))
