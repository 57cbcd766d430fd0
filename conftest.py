"""What tests and doctests share: one thread, and no collection of what needs an extra that is not installed."""

import os
from importlib.util import find_spec

import pytest

NEEDS = {"flwr": "fl_lightning/flower/*.py", "nvflare": "fl_lightning/nvflare/*.py"}
collect_ignore_glob = [folder for package, folder in NEEDS.items() if find_spec(package) is None]

# Threads without work sleep: while they wait in a loop, as is the default, they take the core of another worker.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded

# The results in tests/golden are those of the kernels that the processor has: others round the last bit differently.
os.environ.pop("OPENBLAS_CORETYPE", None)  # read when numpy is loaded


@pytest.hookimpl(tryfirst=True)  # before all fixtures
def pytest_runtest_setup() -> None:
    """Undo what the test before asked for: an engine sets the threads of its process."""
    import torch

    torch.set_num_threads(1)
