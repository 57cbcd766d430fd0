"""What the tests share: a guarded import, one thread, and small federations."""

import os

import fl_lightning.torchvision_guard  # noqa: F401  isort: skip
import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
os.environ.setdefault("WANDB_MODE", "offline")
torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
