"""The handwritten digits, inside the package, so nothing is ever fetched.

They are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, under CC BY 4.0 (``digits.txt``), the same that scikit-learn has.
"""

from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.images import split
from fl_lightning.parts.bases import DataSource, Partition

_FILE = Path(__file__).with_name("digits.npz")
_CLASS_SIZES = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)


class Digits(DataSource):
    """1797 handwritten digits of 8x8 pixels.

    Args:
        partition: How the training examples are split among the clients.
        test_fraction: Share of each class that is kept for testing, the same examples under every seed.
    """

    name = "digits"
    num_classes = 10
    class_names = tuple(map(str, range(10)))

    def __init__(self, partition: Partition, test_fraction: float = 0.2) -> None:
        if not 0 < test_fraction < 1:
            raise ValueError(f"test_fraction must lie between 0 and 1, got {test_fraction!r}")
        self.partition, self.test_fraction = partition, test_fraction

    @property
    def class_sizes(self) -> tuple[int, ...]:
        """Number of training examples of each class."""
        return tuple(size - round(self.test_fraction * size) for size in _CLASS_SIZES)

    def load(self, seed: int) -> TensorFederation:
        """Return the digits as float images in [0, 1] of shape (1, 8, 8), split among the clients."""
        with np.load(_FILE) as stored:
            images = torch.from_numpy(stored["pixels"]).unsqueeze(1).to(torch.float32).div_(16)
            labels = torch.from_numpy(stored["labels"]).to(torch.int64)
        is_test = self._is_test(labels)
        train = (images[~is_test], labels[~is_test])
        return TensorFederation(train, (images[is_test], labels[is_test]), split(train[1], self.partition, seed))

    def _is_test(self, labels: torch.Tensor) -> torch.Tensor:
        rng = np.random.default_rng(0)  # no seed of a run enters: accuracies of all runs are on the same test set
        chosen = torch.zeros(len(labels), dtype=torch.bool)
        for label in range(self.num_classes):
            members = rng.permutation(np.flatnonzero(labels.numpy() == label))
            chosen[torch.from_numpy(members[: round(self.test_fraction * len(members))])] = True
        return chosen
