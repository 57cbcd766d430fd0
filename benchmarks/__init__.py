"""How fast fl_lightning is beside a loop written by hand; run ``python -m benchmarks --help``."""

import fl_lightning  # noqa: F401  before Lightning: see fl_lightning/_torchvision.py
