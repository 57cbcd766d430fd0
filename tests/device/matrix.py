"""What is compared between the CPU and another device: each line of the matrix changes a small run in one way."""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from fl_lightning import algorithm
from fl_lightning.aggregators import (
    ControlVariates,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    LastKnownUpdates,
    MemorizedMean,
    NormBound,
    RowStorage,
    SecureSum,
    TrimmedMean,
)
from fl_lightning.algorithms import Algorithm
from fl_lightning.config.compose import names
from fl_lightning.data import DatasetFederation, LazyFederation, TensorFederation
from fl_lightning.module import FederatedModule
from fl_lightning.solvers import SGD, ModuleOptimizer, TorchOptimizer
from fl_lightning.uploads import Attack, Clip, GaussianMechanism, OverTheAir, Quantized, RandomK, Signs, TopK
from fl_lightning.uploads.noise import Noise
from systems import gaussian_federation, linear_module

Settings = dict[str, Any]  # of made_loop, and also: module, data, precision, resumed_on
Line = Callable[[], Settings]
FEW = ("fedavg", "fedacs", "scaffold", "fedvarp")  # plain, asking for conditions, shifting gradients, remembering
MODES = ("sequential", "stacked")


class Hooked(FederatedModule):
    """Looks at everything that passes, and changes gradients."""

    def on_train_batch_start(self, batch, batch_idx):
        assert batch[0].device == self.device

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] + torch.ones((), device=self.device), batch[1]

    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.clamp_(-0.5, 0.5)


class WithScheduler(FederatedModule):
    """Brings an optimizer of its own."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def _module(*layers: nn.Module, kind: type[FederatedModule] = FederatedModule) -> FederatedModule:
    return kind(nn.Sequential(*layers), 3)


def _normalised() -> Settings:
    return {"module": _module(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))}


def _images() -> Settings:
    """Return a convolution, whose images have another layout while it trains."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(48, 1, 6, 6))).float()
    data = (inputs, torch.from_numpy(rng.integers(0, 3, 48)))
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return {"module": _module(*layers), "data": TensorFederation(data, data, np.split(np.arange(48), 6))}


def _own(whole: TensorFederation, client: int) -> tuple[torch.Tensor, ...]:
    return whole.batch(client, np.arange(whole.sizes[client]))


def _lazy(cache_bytes: int) -> Settings:
    whole = gaussian_federation()
    load = partial(_own, whole)
    return {"data": LazyFederation(whole.sizes, load, whole.test, cache_bytes=cache_bytes)}


def _data_sets() -> Settings:
    whole = gaussian_federation()
    own = [torch.utils.data.TensorDataset(*_own(whole, client)) for client in range(len(whole.sizes))]
    return {"data": DatasetFederation(own, torch.utils.data.TensorDataset(*whole.test))}


def _spoilt() -> Settings:
    """Return data whose last client sends updates that are not finite."""
    whole = gaussian_federation()
    inputs, labels = whole.train
    inputs = inputs.clone()
    inputs[whole.order[-whole.sizes[-1] :]] = float("inf")
    clients = np.split(whole.order, whole.offsets[1:-1])
    return {"data": TensorFederation((inputs, labels), whole.test, clients)}


def _private(place: str) -> Settings:
    return {"uploads": [GaussianMechanism(Clip(0.5), noise_multiplier=1.0, place=place, key=0)]}


def _on_disk(make: Callable[..., Any]) -> Settings:
    return {"aggregator": make(storage=RowStorage(folder=tempfile.gettempdir()))}


# Each with both modes and a few algorithms, where it replaces none of their parts.
FEATURES: dict[str, Line] = {
    "evaluation of clients": lambda: {"evaluate_clients": 2},
    "clipping": lambda: {"uploads": [Clip(0.5)]},
    "adaptive clipping": lambda: {"uploads": [Clip(0.5, quantile=0.5)]},
    "top-k": lambda: {"uploads": [TopK(0.3)]},
    "random-k": lambda: {"uploads": [RandomK(0.3)]},
    "quantised": lambda: {"uploads": [Quantized(8)]},
    "signs": lambda: {"uploads": [Signs()]},
    "attack": lambda: {"uploads": [Attack("sign_flip", 0.3)]},
    "bad updates": _spoilt,
    "local parameters": lambda: {"local_parameters": ["*.bias"]},
    "local parameters, resumed": lambda: {"local_parameters": ["*.bias"], "resumed_on": "same"},
    "compressed, resumed": lambda: {"uploads": [TopK(0.3)], "resumed_on": "same"},
    "LazyFederation": lambda: _lazy(1 << 20),
    "LazyFederation without cache": lambda: _lazy(0),
}
# Each with both modes; these are algorithms.
PARTS: dict[str, Line] = {
    "DP at the server": lambda: _private("server"),
    "DP at the clients": lambda: _private("clients"),
    "secure sum": lambda: {"aggregator": SecureSum(1e6)},
    "secure sum and DP": lambda: {"aggregator": SecureSum(1e6, threshold=2), **_private("distributed")},
    "over the air": lambda: {"uploads": [OverTheAir(20.0, max_norm=50.0)]},
    "attack by noise": lambda: {"uploads": [Attack("gaussian", 0.3)]},
    "attack by little": lambda: {"uploads": [Attack("little_is_enough", 0.3)]},
    "attack by product": lambda: {"uploads": [Attack("inner_product", 0.3)]},
    "free riders": lambda: {"uploads": [Attack("free_rider", 0.3)]},
    "median": lambda: {"aggregator": CoordinateMedian()},
    "geometric median": lambda: {"aggregator": GeometricMedian()},
    "Krum": lambda: {"aggregator": Krum(0.2)},
    "trimmed mean": lambda: {"aggregator": TrimmedMean(0.2)},
    "norm bound": lambda: {"aggregator": NormBound()},
    "FedVARP on disk": lambda: _on_disk(MemorizedMean),
    "SCAFFOLD on disk": lambda: _on_disk(ControlVariates),
    "MIFA on disk": lambda: _on_disk(LastKnownUpdates),
    "momentum": lambda: {"solver": SGD(momentum=0.9, weight_decay=0.01)},
    "images": _images,
}
# One client after another alone: these are not stacked.
ALONE: dict[str, Line] = {
    "hooks": lambda: {"module": _module(nn.Linear(5, 3), kind=Hooked)},
    "BatchNorm": _normalised,
    "dropout": lambda: {"module": _module(nn.Linear(5, 8), nn.Dropout(0.3), nn.Linear(8, 3))},
    "the module's optimizer": lambda: {
        "module": _module(nn.Linear(5, 3), kind=WithScheduler),
        "solver": ModuleOptimizer(votes=True),
        "lr": None,
    },
    "Adam": lambda: {"solver": TorchOptimizer(torch.optim.Adam, votes=True), "lr": 0.01},
    "data sets": _data_sets,
    "mixed precision": lambda: {"precision": "bf16-mixed"},
}
# Beside these, both modes and all algorithms, each as it is shipped.


def shipped(name: str) -> Algorithm:
    """Return a shipped algorithm whose noise can be drawn again."""
    made = algorithm(name, 4)
    for step in made.uploads.steps:
        if isinstance(step, GaussianMechanism):
            step.noise = Noise(0)
    return made


def _layers(name: str) -> Settings:
    """Return a module of two layers for FedRep, whose clients keep the last one."""
    return {"module": _module(nn.Linear(5, 4), nn.Linear(4, 3))} if name == "fedrep" else {}


def cases() -> dict[str, tuple[str, Callable[[], tuple[Algorithm | None, Settings]]]]:
    """Return for each case its mode, and what makes algorithm and settings anew."""
    found = {}
    for mode in MODES:
        for name in names("algorithms"):
            found[f"{name}, {mode}"] = (mode, lambda name=name: (shipped(name), _layers(name)))
            where = "same" if mode == "sequential" else "other"
            found[f"{name}, {mode}, resumed on the {where} device"] = (
                mode,
                lambda name=name, where=where: (shipped(name), _layers(name) | {"resumed_on": where}),
            )
        for feature, line in FEATURES.items():
            for name in FEW:
                found[f"{feature}, {name}, {mode}"] = (mode, lambda name=name, line=line: (shipped(name), line()))
        for part, line in PARTS.items():
            found[f"{part}, {mode}"] = (
                mode,
                lambda line=line: (Algorithm(sampling=shipped("fedacs").sampling), line()),
            )
    for feature, line in ALONE.items():
        for name in FEW:
            found[f"{feature}, {name}, sequential"] = (
                "sequential",
                lambda name=name, line=line: (shipped(name), line()),
            )
    return found


def settings_of(given: Settings) -> Settings:
    """Return the settings of a run, completed."""
    return {
        "module": linear_module(),
        "data": gaussian_federation(),
        "precision": "32-true",
        "resumed_on": None,
    } | given
