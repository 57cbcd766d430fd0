"""What a user hands to ``run`` as the clients' data, whatever its form, as a federation."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import Subset

from fl_lightning.data.columns import split_dataset
from fl_lightning.data.datamodule import FromDataModule
from fl_lightning.data.federation import DatasetFederation
from fl_lightning.parts.bases import Partition
from fl_lightning.parts.protocols import Federation
from fl_lightning.seeding import Purpose, generator

_LOG = logging.getLogger("fl_lightning")


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


def _refuse_others(what: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}= is of no use with {what}, which has its own: leave it out")


def _is_dataset(data: Any) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, dict | str | torch.Tensor)
