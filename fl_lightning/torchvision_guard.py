"""Makes ``import lightning`` work when torchvision's compiled operators do not match the installed torch.

The package index ships torchvision built for CUDA. Beside a CPU-only torch its operator library does not load, and then
importing torchvision (and with it torchmetrics and lightning) fails because two operator schemas are missing. Defining
those schemas is all that data sets and transforms need. Where the library loads, nothing is done.

Import this module before lightning, torchmetrics or torchvision.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _operators_load() -> bool:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # no torchvision, nothing to mend
    libraries = sorted(Path(spec.origin).parent.glob("_C*.*"))
    if not libraries:
        return False
    try:
        torch.ops.load_library(str(libraries[0]))
    except (OSError, RuntimeError):
        return False
    return True


def _define_missing_operators() -> None:
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)


if not _operators_load():
    _define_missing_operators()
