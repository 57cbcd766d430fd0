"""Federated learning on PyTorch Lightning for clients that differ in work and in reach."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning import _torchvision

if TYPE_CHECKING:
    from fl_lightning.aggregators import Aggregator as Aggregator
    from fl_lightning.aggregators import AnonymousMean as AnonymousMean
    from fl_lightning.algorithms import Algorithm as Algorithm
    from fl_lightning.algorithms import System as System
    from fl_lightning.callbacks import ChannelFailures as ChannelFailures
    from fl_lightning.callbacks import ComputationTime as ComputationTime
    from fl_lightning.callbacks import Group as Group
    from fl_lightning.callbacks import HeterogeneitySchedule as HeterogeneitySchedule
    from fl_lightning.callbacks import RoundCheckpoint as RoundCheckpoint
    from fl_lightning.callbacks import RoundProgress as RoundProgress
    from fl_lightning.callbacks import RunRecorder as RunRecorder
    from fl_lightning.callbacks import SamplerSelection as SamplerSelection
    from fl_lightning.callbacks import StopAtTarget as StopAtTarget
    from fl_lightning.callbacks import WandbMetrics as WandbMetrics
    from fl_lightning.config.algorithm_parts import algorithm as algorithm
    from fl_lightning.data import CIFAR10 as CIFAR10
    from fl_lightning.data import IID as IID
    from fl_lightning.data import MNIST as MNIST
    from fl_lightning.data import ByColumn as ByColumn
    from fl_lightning.data import DatasetFederation as DatasetFederation
    from fl_lightning.data import Digits as Digits
    from fl_lightning.data import Dirichlet as Dirichlet
    from fl_lightning.data import FromDataModule as FromDataModule
    from fl_lightning.data import OneClassPerClient as OneClassPerClient
    from fl_lightning.data import TensorFederation as TensorFederation
    from fl_lightning.data import ValidationSplit as ValidationSplit
    from fl_lightning.engine import Engine as Engine
    from fl_lightning.loop import FederatedLoop as FederatedLoop
    from fl_lightning.module import FederatedModule as FederatedModule
    from fl_lightning.samplers import HeterogeneityAware as HeterogeneityAware
    from fl_lightning.samplers import Importance as Importance
    from fl_lightning.samplers import Sampler as Sampler
    from fl_lightning.samplers import Systematic as Systematic
    from fl_lightning.samplers import Uniform as Uniform
    from fl_lightning.samplers import WorkAware as WorkAware
    from fl_lightning.server import Calibration as Calibration
    from fl_lightning.server import CosineRate as CosineRate
    from fl_lightning.server import ExponentialAverage as ExponentialAverage
    from fl_lightning.server import StepRate as StepRate
    from fl_lightning.server import TorchRate as TorchRate
    from fl_lightning.solvers import SGD as SGD
    from fl_lightning.solvers import ModuleOptimizer as ModuleOptimizer
    from fl_lightning.solvers import TorchOptimizer as TorchOptimizer

    __version__: str

_torchvision.install()  # here, because every import of the package passes here
if Path(__file__).with_name("callbacks").is_file():  # git on Windows makes a text file of the link to ../callbacks
    __path__.append(str(Path(__file__).parent.parent))

# The same names as above, for Python itself: torch and Lightning are imported when one of them is first used.
_HOMES = {
    "aggregators": ("Aggregator", "AnonymousMean"),
    "algorithms": ("Algorithm", "System"),
    "callbacks": (
        *("ChannelFailures", "ComputationTime", "Group", "HeterogeneitySchedule", "RoundCheckpoint"),
        *("RoundProgress", "RunRecorder", "SamplerSelection", "StopAtTarget", "WandbMetrics"),
    ),
    "config.algorithm_parts": ("algorithm",),
    "data": (
        *("CIFAR10", "IID", "MNIST", "ByColumn", "DatasetFederation", "Digits", "Dirichlet"),
        *("FromDataModule", "OneClassPerClient", "TensorFederation", "ValidationSplit"),
    ),
    "engine": ("Engine",),
    "loop": ("FederatedLoop",),
    "module": ("FederatedModule",),
    "samplers": ("HeterogeneityAware", "Importance", "Sampler", "Systematic", "Uniform", "WorkAware"),
    "server": ("Calibration", "CosineRate", "ExponentialAverage", "StepRate", "TorchRate"),
    "solvers": ("SGD", "ModuleOptimizer", "TorchOptimizer"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


if not TYPE_CHECKING:  # a type checker that saw this would accept every name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: the command line's help must not wait for torch."""
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("fl-lightning")
            except PackageNotFoundError:  # run from its folder, without having been installed
                return "0+unknown"
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"fl_lightning.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
