"""The clients' data: data sets, where they come from, and how they are split."""

from fl_lightning.data.adult import Adult
from fl_lightning.data.cifar10 import CIFAR10, CINIC10, load_cifar10, load_cinic10
from fl_lightning.data.derived import FlippedLabels, ValidationSplit
from fl_lightning.data.federation import DatasetFederation, TensorFederation, label_counts
from fl_lightning.data.flights import Flights
from fl_lightning.data.given import ByColumn, FromDataModule
from fl_lightning.data.hub import FromHub
from fl_lightning.data.images import Images
from fl_lightning.data.lazy import ClientFiles, LazyFederation, mapped
from fl_lightning.data.mnist import MNIST, Digits, FashionMNIST, load_fashion, load_mnist
from fl_lightning.data.partitions import IID, Dirichlet, GivenIndices, OneClassPerClient, Shards
from fl_lightning.data.quadratic import Quadratic, QuadraticFederation
from fl_lightning.data.shakespeare import Shakespeare
from fl_lightning.data.table import FromTable
from fl_lightning.data.watch import Watch
from fl_lightning.data.writers import Writers
from fl_lightning.parts.bases import Partition

__all__ = [
    "CIFAR10",
    "CINIC10",
    "IID",
    "MNIST",
    "Adult",
    "ByColumn",
    "ClientFiles",
    "DatasetFederation",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "Flights",
    "FlippedLabels",
    "FromDataModule",
    "FromHub",
    "FromTable",
    "GivenIndices",
    "Images",
    "LazyFederation",
    "OneClassPerClient",
    "Partition",
    "Quadratic",
    "QuadraticFederation",
    "Shakespeare",
    "Shards",
    "TensorFederation",
    "ValidationSplit",
    "Watch",
    "Writers",
    "label_counts",
    "load_cifar10",
    "load_cinic10",
    "load_fashion",
    "load_mnist",
    "mapped",
]
