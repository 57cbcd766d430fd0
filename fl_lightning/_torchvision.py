"""Makes ``import torchvision`` work when its compiled operators do not match the installed torch.

The package index ships torchvision built for CUDA. Beside a CPU-only torch its operator library does not load, and then
importing torchvision (and with it torchmetrics and lightning) fails because two operator schemas are missing. Defining
those schemas is all that data sets and transforms need. Where the library loads, nothing is done.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class TorchvisionFinder(MetaPathFinder):
    """Finds nothing itself; it prepares torch in the moment in which somebody imports torchvision."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Prepare once, and leave finding to the others."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _define_missing_operators()
        return None


def install() -> None:
    """Put the finder first, unless torchvision was imported already and so needs no help."""
    if "torchvision" not in sys.modules and not any(isinstance(each, TorchvisionFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionFinder())


def _define_missing_operators() -> None:
    spec = PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return  # not installed
    import torch

    if _loads(sorted(Path(spec.origin).parent.glob("_C*.*"))):
        return
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)


def _loads(libraries: Sequence[Path]) -> bool:
    import torch

    if not libraries:
        return False
    try:
        torch.ops.load_library(str(libraries[0]))
    except (OSError, RuntimeError):
        return False
    return True
