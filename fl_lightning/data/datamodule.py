"""A LightningDataModule as the source of the clients' data."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Subset

from fl_lightning.data.columns import Column, split_dataset
from fl_lightning.data.federation import DatasetFederation
from fl_lightning.parts.bases import DataSource, Partition
from fl_lightning.seeding import Purpose, generator


class FromDataModule(DataSource):
    """Splits the training set of a LightningDataModule among clients; its test set (or validation set) is common.

    Training batches are made by the ``collate_fn`` of the data module's training loader; their size and order are the
    loop's. Evaluation uses the data module's own test (or validation) loader as it is.

    Args:
        datamodule: With ``train_dataloader`` and ``test_dataloader`` or ``val_dataloader``.
        partition: How the training set is split. None where ``train_dataloader`` returns a list or dict of loaders, one
            for each client.
        labels: For a partition by label, where they are: a key of the examples, a function of an example, or an array.
            By default ``label``, ``labels``, ``target`` or ``targets``, or the second entry of examples that are pairs.
    """

    def __init__(
        self, datamodule: LightningDataModule, partition: Partition | None = None, labels: Column | None = None
    ) -> None:
        self.datamodule, self.partition, self.labels = datamodule, partition, labels

    def load(self, seed: int) -> DatasetFederation:
        """Prepare the data module and split it."""
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        clients, train = self._clients(self.datamodule.train_dataloader(), seed)
        self.datamodule.setup("test")
        has_test = type(self.datamodule).test_dataloader is not LightningDataModule.test_dataloader
        name = "test_dataloader" if has_test else "val_dataloader"
        test = _loader(name, getattr(self.datamodule, name)())
        federation = DatasetFederation(clients, test, train.collate_fn)
        federation.datamodule = self.datamodule
        return federation

    def _clients(self, loaders: Any, seed: int) -> tuple[list[Dataset[Any]], DataLoader[Any]]:
        """Return the data set of each client, and a loader that knows how batches are made."""
        if self.partition is not None:
            train = _loader("train_dataloader", loaders)
            parts = split_dataset(train.dataset, self.partition, generator(seed, Purpose.PARTITION), self.labels)
            return [Subset(train.dataset, part.tolist()) for part in parts], train
        several = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
        if not isinstance(several, list | tuple) or not several:
            raise ValueError(
                f"the train_dataloader of {type(self.datamodule).__name__} returns one loader, so it must be said how "
                "clients share it: give a partition, such as Dirichlet(num_clients=20, alpha=0.5) or IID(20)"
            )
        each = [_loader("train_dataloader", loader) for loader in several]
        if any(loader.collate_fn is not each[0].collate_fn for loader in each):
            raise ValueError("the clients' loaders have different collate functions: give all of them the same one")
        return [loader.dataset for loader in each], each[0]


def _loader(name: str, loader: Any) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise ValueError(f"{name} must return one DataLoader, but returned {type(loader).__name__}")
    return loader
