"""What a user hands over as the clients' data, whatever its form, as a federation.

Labels, or any other column of a data set, are found by name, by position or by a function of an example.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from fl_lightning.data.federation import AnyDataset, DatasetFederation
from fl_lightning.data.partitions import at_least_one, by_owner
from fl_lightning.parts.bases import DataSource, Partition
from fl_lightning.parts.protocols import Federation
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule  # heavy: only those who bring a data module need it

_LOG = logging.getLogger("fl_lightning")

Indexed: TypeAlias = Any  # a data set with ``__len__`` and ``__getitem__``: of torch, of Hugging Face, or a list
Values: TypeAlias = npt.NDArray[np.generic]  # one for each example
# A key of the examples (or a position, where they are tuples), a function of an example, or the values themselves.
Column: TypeAlias = str | int | Callable[[Any], Any] | Sequence[Any]
_LABELS = ("label", "labels", "target", "targets")


def column_values(dataset: Indexed, column: Column) -> Values:
    """Return one value for each example of a data set."""
    if callable(column):
        return np.asarray([_plain(column(dataset[index])) for index in range(len(dataset))])
    if isinstance(column, str | int):
        found = _named(dataset, column)
        if found is None:
            raise ValueError(f"no column {column!r} in a {type(dataset).__name__}: {_described(dataset)}")
        return found
    values = np.asarray(column)
    if values.shape != (len(dataset),):
        raise ValueError(f"got values of shape {values.shape}, but the data set has {len(dataset)} examples")
    return values


def find_labels(dataset: Indexed, given: Column | None = None) -> IntVector | None:
    """Return the label of each example as an integer; None where the data set has none that is recognised.

    Recognised are columns, attributes and keys called ``label``, ``labels``, ``target`` or ``targets``, and the second
    entry of examples that are tuples, if they hold one whole number or string for each example.

    >>> find_labels([{"text": "a", "label": "no"}, {"text": "b", "label": "yes"}])
    array([0, 1])
    >>> find_labels([{"text": "a"}, {"text": "b"}], given=lambda example: example["text"] == "a")
    array([1, 0])
    """
    values = _recognised(dataset) if given is None else column_values(dataset, given)
    if values is None:
        return None
    if not _are_labels(values):
        raise ValueError(f"labels must be one whole number or string per example, got {values.dtype}: group them first")
    return values.astype(np.int64) if values.dtype.kind in "iu" else np.unique(values, return_inverse=True)[1]


def _split(
    dataset: Indexed, partition: Partition, seed: int, labels: Column | None = None
) -> tuple[list[AnyDataset], Sequence[str]]:
    """Return the part of a data set that each client has, and the names of the clients, where the partition has any."""
    rng = generator(seed, Purpose.PARTITION)
    by_column, uses_labels = hasattr(partition, "split_dataset"), getattr(partition, "uses_labels", True)
    if labels is not None and (by_column or not uses_labels):
        raise ValueError(f"{type(partition).__name__} looks at no labels: leave labels= out, or split by Dirichlet")
    found = find_labels(dataset, labels) if uses_labels and not by_column else np.zeros(len(dataset), dtype=np.int64)
    if found is None:
        raise ValueError(
            f"{type(partition).__name__} splits by label, but a {type(dataset).__name__} has none that is recognised: "
            f"{_described(dataset)}; give labels= a key, a function of an example or an array, or split by IID"
        )
    parts = partition.split_dataset(dataset, rng) if by_column else partition.split(found, rng)  # type: ignore[attr-defined]
    return [Subset(dataset, part.tolist()) for part in parts], getattr(partition, "names", ())


def _recognised(dataset: Indexed) -> Values | None:
    if isinstance(dataset, Subset):
        whole = _recognised(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    example = dataset[0]
    is_pair = isinstance(example, tuple | list) and len(example) > 1 and _is_label(example[1])
    for name in _LABELS:
        values = _attribute(dataset, name)
        if values is not None and _are_labels(values):
            return values
        if isinstance(example, Mapping) and name in example and _is_label(example[name]):
            return _named(dataset, name)
    return _named(dataset, 1) if is_pair else None


def _named(dataset: Indexed, key: str | int) -> Values | None:
    """Return a column by its name or position; as a whole where the data set can, else example by example."""
    if isinstance(dataset, Subset):
        whole = _named(dataset.dataset, key)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(key, int) and isinstance(dataset, TensorDataset) and key < len(dataset.tensors):
        return dataset.tensors[key].numpy()
    if key in (getattr(dataset, "column_names", None) or ()):  # of Hugging Face: the column without its format
        return np.asarray([_plain(value) for value in dataset.with_format(None)[key]])
    example = dataset[0]
    is_there = key in example if isinstance(example, Mapping) else isinstance(key, int) and key < len(example)
    if is_there:
        return np.asarray([_plain(dataset[index][key]) for index in range(len(dataset))])
    return _attribute(dataset, key) if isinstance(key, str) else None


def _attribute(dataset: Indexed, name: str) -> Values | None:
    """Return an attribute that has one value for each example, as ``targets`` of torchvision."""
    try:
        values = np.asarray(getattr(dataset, name, None))
    except ValueError:  # lists of unequal length
        return None
    return values if values.shape == (len(dataset),) else None


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value


def _is_label(value: Any) -> bool:
    return isinstance(value, str) or (np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biu")


def _are_labels(values: Values) -> bool:
    return values.ndim == 1 and (values.dtype.kind in "biuUS" or all(isinstance(value, str) for value in values))


def _described(dataset: Indexed) -> str:
    example = dataset[0]
    if isinstance(example, Mapping):
        return f"its examples have the keys {', '.join(map(repr, example))}"
    kinds = ", ".join(type(part).__name__ for part in example) if isinstance(example, tuple | list) else ""
    return f"its examples are a {type(example).__name__}" + (f" of {kinds}" if kinds else "")


class ByColumn(Partition):
    """Give each client the examples of one value of a column: the data of one user, one hospital, one device.

    Clients are numbered in the order of their values.

    Args:
        column: The key of the value in each example (or its position, where examples are tuples), a function of an
            example, or the values themselves.
        min_size: Leave out clients with fewer examples than this.

    >>> visits = [{"user": "b"}, {"user": "a"}, {"user": "b"}]
    >>> [part.tolist() for part in ByColumn("user").split_dataset(visits, np.random.default_rng(0))]
    [[1], [0, 2]]
    """

    def __init__(self, column: Column, min_size: int = 1) -> None:
        self.column, self.min_size = column, at_least_one("min_size", min_size)
        self.names: list[str] = []  # of the clients, once a data set is split

    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Refuse labels: they are another column than the one that is wanted."""
        raise ValueError(
            f"this data has labels but no column {self.column!r}: use ByColumn with FromDataModule or with a data set "
            "of your own"
        )

    def split_dataset(self, dataset: Indexed, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""
        found, parts = by_owner(column_values(dataset, self.column), self.min_size, f"value of {self.column!r}")
        self.names = list(map(str, found))
        return parts


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
        self, datamodule: "LightningDataModule", partition: Partition | None = None, labels: Column | None = None
    ) -> None:
        self.datamodule, self.partition = datamodule, partition
        self.labels = labels

    def load(self, seed: int) -> DatasetFederation:
        """Prepare the data module and split it."""
        from lightning.pytorch.utilities.model_helpers import is_overridden

        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        clients, names, train = self._clients(self.datamodule.train_dataloader(), seed)
        self.datamodule.setup("test")
        has_test = is_overridden("test_dataloader", self.datamodule)
        name = "test_dataloader" if has_test else "val_dataloader"
        test = _loader(name, getattr(self.datamodule, name)())
        federation = DatasetFederation(clients, test, train.collate_fn, names=names)
        federation.datamodule = self.datamodule
        return federation

    def _clients(self, loaders: object, seed: int) -> tuple[list[AnyDataset], Sequence[str], DataLoader[Any]]:
        if self.partition is not None:
            train = _loader("train_dataloader", loaders)
            return *_split(train.dataset, self.partition, seed, self.labels), train
        several = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
        if not isinstance(several, list | tuple) or not several:
            raise ValueError(
                f"the train_dataloader of {type(self.datamodule).__name__} returns one loader, so it must be said how "
                "clients share it: give a partition, such as Dirichlet(num_clients=20, alpha=0.5) or IID(20)"
            )
        each = [_loader("train_dataloader", loader) for loader in several]
        if any(loader.collate_fn is not each[0].collate_fn for loader in each):
            raise ValueError("the clients' loaders have different collate functions: give all of them the same one")
        names = [str(name) for name in loaders] if isinstance(loaders, Mapping) else ()
        return [loader.dataset for loader in each], names, each[0]


def _loader(name: str, loader: object) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise ValueError(f"{name} must return one DataLoader, but returned {type(loader).__name__}")
    return loader


def as_federation(data: Any, seed: int, partition: Partition | None = None, test: Any = None) -> Federation:
    """Return the federation that some data stands for.

    Args:
        data: A federation; a data source that is not loaded yet (``Digits(...)``); a list with one data set per client,
            or a dict of them by the clients' names; one data set or a LightningDataModule, split by ``partition``.
        seed: Of the partition.
        partition: How clients share one data set or data module.
        test: The common test data of one data set or of a list; without it nothing is evaluated.
    """
    from lightning.pytorch import LightningDataModule

    if isinstance(data, LightningDataModule):
        _refuse_others("a data module", test=test)
        return FromDataModule(data, partition).load(seed)
    if hasattr(data, "test_batches") or (hasattr(data, "batch") and not _is_dataset(data)):
        _refuse_others("a federation", partition=partition, test=test)
        return data
    if hasattr(data, "load"):
        _refuse_others(type(data).__name__, partition=partition, test=test)
        return data.load(seed)
    if isinstance(data, list | tuple | dict):
        _refuse_others("a list or dict with the data set of each client", partition=partition)
        return _of_each(data, test)
    if hasattr(data, "iloc"):
        raise TypeError(
            "a DataFrame does not say whose its rows are: give FromTable(frame, client='column', label='column') of "
            "fl_lightning.data"
        )
    if not _is_dataset(data):
        raise TypeError(
            f"cannot train on a {type(data).__name__}: give a federation, a data source, a LightningDataModule, a data "
            "set with partition=, or a list of data sets"
        )
    if partition is None:
        raise ValueError(f"give partition= to say how clients share a {type(data).__name__}, or a list of data sets")
    datasets, names = _split(data, partition, seed)
    return _federation(datasets, test, names)


def _of_each(data: Any, test: Any) -> DatasetFederation:
    named = isinstance(data, dict)
    datasets = list(data.values()) if named else data
    if not datasets or not all(map(_is_dataset, datasets)):
        kinds = ", ".join(sorted({type(each).__name__ for each in datasets})) or "nothing"
        raise TypeError(f"a {type(data).__name__} of data must hold one data set per client, but holds {kinds}")
    return _federation(datasets, test, [str(name) for name in data] if named else ())


def _federation(datasets: Sequence[Any], test: Any, names: Sequence[str] = ()) -> DatasetFederation:
    if test is None:
        _LOG.warning("no test data is given, so nothing is evaluated: give test= a data set")
    return DatasetFederation(datasets, test, names=names)


def _refuse_others(what: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}= is of no use with {what}, which has its own: leave it out")


def _is_dataset(data: object) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, dict | str | torch.Tensor)
