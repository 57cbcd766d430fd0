"""What a user hands over as the clients' data, whatever its form, as a federation."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, Subset

from fl_lightning.data.columns import Column, split_dataset
from fl_lightning.data.federation import AnyDataset, DatasetFederation
from fl_lightning.parts.bases import DataSource, Partition
from fl_lightning.parts.protocols import Federation
from fl_lightning.seeding import Purpose, generator

_LOG = logging.getLogger("fl_lightning")


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
        self.datamodule = datamodule
        self.partition = partition
        self.labels = labels

    def load(self, seed: int) -> DatasetFederation:
        """Prepare the data module and split it."""
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        clients, train = self._clients(self.datamodule.train_dataloader(), seed)
        self.datamodule.setup("test")
        has_test = is_overridden("test_dataloader", self.datamodule)
        name = "test_dataloader" if has_test else "val_dataloader"
        test = _loader(name, getattr(self.datamodule, name)())
        federation = DatasetFederation(clients, test, train.collate_fn)
        federation.datamodule = self.datamodule
        return federation

    def _clients(self, loaders: object, seed: int) -> tuple[list[AnyDataset], DataLoader[Any]]:
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


def _loader(name: str, loader: object) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise ValueError(f"{name} must return one DataLoader, but returned {type(loader).__name__}")
    return loader


def as_federation(data: Any, seed: int, partition: Partition | None = None, test: Any = None) -> Federation:
    """Return the federation that some data stands for.

    Args:
        data: A federation; a data source that is not loaded yet (``Digits(...)``); a list with one data set per client;
            one data set or a LightningDataModule, split by ``partition``.
        seed: Of the partition.
        partition: How clients share one data set or data module.
        test: The common test data of one data set or of a list; without it nothing is evaluated.

    Raises:
        TypeError: If the data is none of these.
        ValueError: If a partition or test data is given where it would not be used, or is missing.
    """
    if isinstance(data, LightningDataModule):
        _refuse_others("a data module", test=test)
        return FromDataModule(data, partition).load(seed)
    if hasattr(data, "test_batches") or (hasattr(data, "batch") and not _is_dataset(data)):
        _refuse_others("a federation", partition=partition, test=test)
        return data
    if hasattr(data, "load"):
        _refuse_others(type(data).__name__, partition=partition, test=test)
        return data.load(seed)
    if isinstance(data, list | tuple):
        _refuse_others("a list with the data set of each client", partition=partition)
        if not data or not all(map(_is_dataset, data)):
            kinds = ", ".join(sorted({type(each).__name__ for each in data})) or "nothing"
            raise TypeError(f"a list of data must hold one data set per client, but holds {kinds}")
        return _federation(data, test)
    if not _is_dataset(data):
        raise TypeError(
            f"cannot train on a {type(data).__name__}: give a federation, a data source, a LightningDataModule, a data "
            "set with partition=, or a list of data sets"
        )
    if partition is None:
        raise ValueError(f"give partition= to say how clients share a {type(data).__name__}, or a list of data sets")
    parts = split_dataset(data, partition, generator(seed, Purpose.PARTITION))
    return _federation([Subset(data, part.tolist()) for part in parts], test)


def _federation(datasets: Sequence[Any], test: Any) -> DatasetFederation:
    if test is None:
        _LOG.warning("no test data is given, so nothing is evaluated: give test= a data set")
    return DatasetFederation(datasets, test)


def _refuse_others(what: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}= is of no use with {what}, which has its own: leave it out")


def _is_dataset(data: object) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, dict | str | torch.Tensor)
