"""Plays a run with a process on each of two pretend devices; ``test_pretend_device.py`` compares it with the CPU."""

import sys

import fl_lightning  # noqa: F401  first, so that torchvision loads

# isort: split
import torch

from device import pretend
from two_processes import played

if __name__ == "__main__":
    fabric = pretend.fabric_of_two()
    fabric.launch()
    for mode in ("stacked", "sequential", "local"):
        result = {name: tensor.cpu() for name, tensor in played(mode, fabric).items()}
        torch.save(result, f"{sys.argv[1]}/{mode}_{fabric.global_rank}.pt")
