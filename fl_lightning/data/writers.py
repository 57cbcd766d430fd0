"""MNIST by the people who wrote its digits, and tested on people nobody trained on.

Who wrote which digit was found out for QMNIST: Yadav and Bottou, "Cold Case: The Lost MNIST Digits" (2019).
"""

from functools import partial
from pathlib import Path

import numpy as np

from fl_lightning.data.archives import PinnedFile, gunzipped
from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.fetching import FetchError, download
from fl_lightning.data.images import normalise, torchvision_datasets
from fl_lightning.data.mnist import MNIST, load_mnist
from fl_lightning.data.partitions import at_least_one, by_owner
from fl_lightning.parts.bases import DataSource
from fl_lightning.types import IntVector

_IDS = {
    "train": PinnedFile(
        name="qmnist-train-labels-idx2-int.gz",
        num_bytes=463_024,
        digest="2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
    ),
    "test": PinnedFile(
        name="qmnist-test-labels-idx2-int.gz",
        num_bytes=526_800,
        digest="9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
    ),
}
_COLUMNS = 8  # label, part of NIST, writer, ...
_UNPACKED = 1_920_012


class Writers(DataSource):
    """MNIST: each of the 539 people who wrote its training digits is a client; 297 others wrote the test digits.

    Args:
        root: Folder of the data; fetched into it when absent.
        min_size: Leave out writers with fewer digits.
    """

    num_classes = 10

    def __init__(self, root: str = "datasets", min_size: int = 1) -> None:
        self.root, self.min_size = root, at_least_one("min_size", min_size)

    def load(self, seed: int) -> TensorFederation:
        """Return the digits of each writer, normalised as :class:`MNIST` is."""
        images = load_mnist(self.root)
        writers, rows = by_owner(writer_ids(self.root, "train"), self.min_size, "writer", "digits")
        train, test = (normalise(each, MNIST.mean, MNIST.std) for each in (images.train_images, images.test_images))
        names = [f"writer {writer}" for writer in writers]
        return TensorFederation((train, images.train_labels), (test, images.test_labels), rows, names)


def writer_ids(root: str | Path, part: str) -> IntVector:
    """Return who wrote each digit of MNIST's ``train`` or ``test`` part, in its order."""
    content = gunzipped(_IDS[part].obtain(root, (partial(_download, part),)), _IDS[part].name, _UNPACKED)
    rows = np.frombuffer(content, dtype=">i4", offset=12).reshape(-1, _COLUMNS)
    return rows[: 60_000 if part == "train" else 10_000, 2].astype(np.int64)


def _download(part: str, target: Path) -> None:
    found = [pair for pair in torchvision_datasets().QMNIST.resources[part] if pair[0].endswith(target.name)]
    if not found:
        raise FetchError("torchvision knows no address")
    address, md5 = found[0]
    download(address, target, md5, _IDS[part].num_bytes)
