"""CINIC-10: a folder tree of small pictures, decoded once and then kept as one file."""

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track

from fl_lightning.data.cifar10 import CLASS_NAMES
from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.fetching import workspace
from fl_lightning.data.images import Images, image_federation, read_images, read_picture, save_images
from fl_lightning.parts.bases import DataSource, Partition

_STORED = "cinic10.pt"
_SPLITS = ("train", "test")


class CINIC10(DataSource):
    """90,000 + 90,000 colour photographs of 32x32 pixels (the split ``valid`` is left alone).

    Args:
        partition: How the training examples are split among the clients.
        root: Folder that holds ``train/<class>/*.png`` and ``test/<class>/*.png``, or ``CINIC-10`` with these inside.
    """

    name = "cinic10"
    num_classes = 10
    class_sizes = (9000,) * 10  # of the training examples
    class_names = CLASS_NAMES
    mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)

    def __init__(self, partition: Partition, root: str = "datasets") -> None:
        self.partition, self.root = partition, root

    def load(self, seed: int) -> TensorFederation:
        """Return normalised images of shape (3, 32, 32), split among the clients."""
        return image_federation(load_cinic10(self.root), self.mean, self.std, self.partition, seed)


def load_cinic10(root: str | Path) -> Images:
    """Return CINIC-10 from ``root``: from the stored file if it still fits the folder tree, else from the pictures."""
    root = Path(root)
    stored = root / _STORED
    tree = _find(root)
    fingerprint = "" if tree is None else _fingerprint(tree)
    if stored.is_file():
        images, extra = read_images(stored)
        if " ".join(images.digests()) != extra.get("digests"):
            raise ValueError(f"{stored} is damaged (wrong checksum); delete it and start again")
        if tree is None or fingerprint == extra.get("fingerprint"):
            return images
    if tree is None:
        raise FileNotFoundError(
            f"CINIC-10 is not in {root} and is in no package registry. Unpack its authors' CINIC-10.tar.gz into "
            f"{root / 'CINIC-10'}, so that {root / 'CINIC-10' / 'train' / CLASS_NAMES[0]}/*.png exist"
        )
    train, test = _decode(tree, "train"), _decode(tree, "test")
    images = Images(train_images=train[0], train_labels=train[1], test_images=test[0], test_labels=test[1])
    if os.access(root, os.W_OK):  # a shared folder may be read-only
        extra = {"fingerprint": fingerprint, "digests": " ".join(images.digests())}
        with workspace(root) as temporary:
            save_images(images, stored, extra, temporary)
    return images


def _find(root: Path) -> Path | None:
    for folder in (root / "CINIC-10", root):
        if all((folder / split).is_dir() for split in _SPLITS):
            return folder
    return None


def _files(tree: Path, split: str, name: str) -> list[os.DirEntry[str]]:
    folder = tree / split / name
    if not folder.is_dir():
        raise FileNotFoundError(f"CINIC-10 has a folder for each of ten classes, {folder} is missing")
    with os.scandir(folder) as entries:
        files = sorted((entry for entry in entries if entry.name.endswith(".png")), key=lambda entry: entry.name)
    if not files:
        raise FileNotFoundError(f"no *.png in {folder}")
    return files


def _fingerprint(tree: Path) -> str:
    """Return a checksum over names and sizes of the pictures; reading them all would take as long as decoding."""
    checksum = hashlib.sha256()
    for split in _SPLITS:
        for name in CLASS_NAMES:
            for entry in _files(tree, split, name):
                checksum.update(f"{split}/{name}/{entry.name} {entry.stat().st_size}\n".encode())
    return checksum.hexdigest()


def _decode(tree: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images and labels of a split, by class and file name."""
    paths = [(label, entry.path) for label, name in enumerate(CLASS_NAMES) for entry in _files(tree, split, name)]
    images = np.empty((len(paths), 3, 32, 32), dtype=np.uint8)
    bar = track(paths, f"Decoding CINIC-10 {split}", console=Console(stderr=True))
    for row, (_, path) in enumerate(bar):
        images[row] = _picture(path)
    return torch.from_numpy(images), torch.tensor([label for label, _ in paths], dtype=torch.int64)


def _picture(path: str) -> npt.NDArray[np.uint8]:
    pixels = read_picture(path)  # some of the pictures are grey
    if pixels.shape != (32, 32, 3):
        raise ValueError(f"{path} must have 32x32 pixels, got {pixels.shape[1]}x{pixels.shape[0]}")
    return pixels.transpose(2, 0, 1)
