"""A pretend accelerator: a device of PyTorch with memory of its own kind; every operator falls back to the CPU.

Tensors of it and of the CPU do not mix, as on a real accelerator, so it finds an index, a mask or a mean that stayed
behind. Building it takes one to three minutes with g++ and ninja; PyTorch keeps what was built.
"""

import os
import types
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators import Accelerator
from lightning.fabric.plugins import Precision
from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.fabric.utilities.distributed import _init_dist_connection
from torch.utils.cpp_extension import load

import fl_lightning.types as types_of_runs
from fl_lightning.engine import machine

NAME = "pretend"


def install() -> None:
    """Build the device once per machine and make it known to PyTorch, once per process."""
    if hasattr(torch, NAME):
        return
    built = load(NAME, [str(Path(__file__).with_name("pretend.cpp"))], extra_cflags=["-O1"])
    built.install()
    if "PRETEND_NO_FLOAT64" in os.environ:
        built.allow_doubles(False)
        types_of_runs._WITHOUT_FLOAT64.append(NAME)
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.synchronize = lambda device=None: None
    module.set_device = lambda device: None
    module.empty_cache = lambda: None
    module.num_pinned = built.num_pinned
    torch._register_device_module(NAME, module)
    machine.PINNING.append(NAME)
    torch.utils.generate_methods_for_privateuse1_backend()


class Pretend(Accelerator):
    """What Fabric wants to know of the device."""

    def setup_device(self, device): ...

    def teardown(self): ...

    @staticmethod
    def parse_devices(devices):
        return devices

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return NAME


class OneDeviceEach(DDPStrategy):
    """Two processes with a device each, whose messages must come from the device, as on a GPU, and end there."""

    def __init__(self) -> None:
        super().__init__(Pretend(), [torch.device(NAME, 0)] * 2, process_group_backend="gloo", start_method="popen")

    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        _init_dist_connection(self.cluster_environment, "gloo")

    def all_gather(self, tensor, group=None, sync_grads=False):
        assert tensor.device.type == NAME
        return super().all_gather(tensor.cpu(), group, sync_grads).to(tensor.device)

    def all_reduce(self, tensor, group=None, reduce_op="mean"):
        assert tensor.device.type == NAME
        return super().all_reduce(tensor.cpu(), group, reduce_op).to(tensor.device)


def fabric_of_two() -> Fabric:
    """Return a Fabric on two devices."""
    install()
    return Fabric(strategy=OneDeviceEach(), devices=2)


def fabric(plugins: Sequence[Precision] = ()) -> Fabric:
    """Return a Fabric on the device."""
    install()
    strategy = SingleDeviceStrategy(device=torch.device(NAME, 0), accelerator=Pretend())
    return Fabric(strategy=strategy, plugins=[*plugins])
