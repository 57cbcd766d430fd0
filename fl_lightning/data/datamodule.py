"""A LightningDataModule as the source of the clients' data."""

from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Subset

from fl_lightning.data.federation import DatasetFederation
from fl_lightning.data.partitions import Partition
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector


class FromDataModule:
    """Splits the training set of a LightningDataModule among clients; its test set (or validation set) is common.

    Training batches are made by the ``collate_fn`` of the data module's training loader; their size and order are the
    loop's. Evaluation uses the data module's own test (or validation) loader as it is.

    Args:
        datamodule: With ``train_dataloader`` and ``test_dataloader`` or ``val_dataloader``.
        partition: How the training set is split. Where it looks at labels, they are the data set's ``targets``, or the
            second entry of each example.
    """

    def __init__(self, datamodule: LightningDataModule, partition: Partition) -> None:
        self.datamodule, self.partition = datamodule, partition

    def load(self, seed: int) -> DatasetFederation:
        """Prepare the data module and split it."""
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        train = _loader("train_dataloader", self.datamodule.train_dataloader())
        self.datamodule.setup("test")
        has_test = type(self.datamodule).test_dataloader is not LightningDataModule.test_dataloader
        name = "test_dataloader" if has_test else "val_dataloader"
        test = _loader(name, getattr(self.datamodule, name)())
        labels = _labels(train.dataset)
        parts = self.partition.split(labels, generator(seed, Purpose.PARTITION))
        clients = [Subset(train.dataset, part.tolist()) for part in parts]
        federation = DatasetFederation(clients, test, train.collate_fn)
        federation.datamodule = self.datamodule
        return federation


def _loader(name: str, loader: Any) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise ValueError(f"{name} must return one DataLoader, but returned {type(loader).__name__}")
    return loader


def _labels(dataset: Dataset[Any]) -> IntVector:
    """Return the labels of a data set; zeros where it has none, which is enough to split it evenly."""
    targets = getattr(dataset, "targets", None)
    if targets is None:
        length = len(dataset)  # type: ignore[arg-type]
        example = dataset[0]
        if not isinstance(example, (tuple, list)) or len(example) < 2 or not _is_label(example[1]):
            return np.zeros(length, dtype=np.int64)
        targets = [int(dataset[index][1]) for index in range(length)]
    return np.asarray(targets, dtype=np.int64)


def _is_label(value: Any) -> bool:
    array = np.asarray(value)
    return array.ndim == 0 and np.issubdtype(array.dtype, np.integer)
