"""The clients' data: data sets, where they come from, and how they are split."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fl_lightning.data.cifar10 import CIFAR10, load_cifar10
from fl_lightning.data.cinic10 import CINIC10, load_cinic10
from fl_lightning.data.client_files import ClientFiles, mapped
from fl_lightning.data.columns import ByColumn
from fl_lightning.data.digits import Digits
from fl_lightning.data.federation import DatasetFederation, TensorFederation, label_counts
from fl_lightning.data.flipped import FlippedLabels
from fl_lightning.data.held_out import ValidationSplit
from fl_lightning.data.images import Images
from fl_lightning.data.lazy import LazyFederation
from fl_lightning.data.mnist import MNIST, load_mnist
from fl_lightning.data.partitions import IID, Dirichlet, GivenIndices, OneClassPerClient, Shards
from fl_lightning.data.quadratic import Quadratic, QuadraticFederation
from fl_lightning.parts.bases import Partition

if TYPE_CHECKING:
    from fl_lightning.data.given import FromDataModule

__all__ = [
    "CIFAR10",
    "CINIC10",
    "IID",
    "MNIST",
    "ByColumn",
    "ClientFiles",
    "DatasetFederation",
    "Digits",
    "Dirichlet",
    "FlippedLabels",
    "FromDataModule",
    "GivenIndices",
    "Images",
    "LazyFederation",
    "OneClassPerClient",
    "Partition",
    "Quadratic",
    "QuadraticFederation",
    "Shards",
    "TensorFederation",
    "ValidationSplit",
    "label_counts",
    "load_cifar10",
    "load_cinic10",
    "load_mnist",
    "mapped",
]


def __getattr__(name: str) -> Any:
    """Import Lightning only for those who bring a data module."""
    if name == "FromDataModule":
        return import_module("fl_lightning.data.given").FromDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
