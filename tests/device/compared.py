"""Runs every algorithm on the CPU and on the pretend device, and prints how far they are apart as JSON.

In a process of its own: PyTorch counts devices when it first goes backward, so the device must be there before.
"""

import json
import sys

import fl_lightning  # noqa: F401  first, so that torchvision loads

# isort: split
import torch
from lightning.fabric import Fabric

from device.pretend import fabric
from fl_lightning import algorithm
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule
from fl_lightning.config.compose import names
from fl_lightning.engine import Engine
from fl_lightning.uploads import GaussianMechanism
from fl_lightning.uploads.noise import Noise
from made import made_loop
from systems import PAPER_GROUPS, gaussian_federation, linear_module


def weights(name: str, mode: str, where: Fabric) -> torch.Tensor:
    torch.manual_seed(0)
    loop = made_loop(
        algorithm(name, 4, {"uploads": [_fixed(step) for step in algorithm(name, 4).uploads.steps]}),
        rounds=4,
        lr=0.05,
        batch_size=4,
        schedule=HeterogeneitySchedule(groups=PAPER_GROUPS),
        channel=ChannelFailures(),
        engine=Engine(mode),
        fabric=where,
    )
    return loop.run(linear_module(), gaussian_federation()).weights.cpu()


def _fixed(step):
    if isinstance(step, GaussianMechanism):
        step.noise = Noise(0)  # that can be drawn again
    return step


def apart(name: str, mode: str, device: Fabric) -> float | str:
    here = weights(name, mode, Fabric(accelerator="cpu", devices=1))
    try:
        there = weights(name, mode, device)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return float((here - there).norm() / here.norm())


if __name__ == "__main__":
    pretend = fabric()
    modes = ("sequential", "stacked")
    found = {f"{name} {mode}": apart(name, mode, pretend) for name in names("algorithms") for mode in modes}
    json.dump(found, sys.stdout)
