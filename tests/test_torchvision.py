"""One import hook makes ``import lightning`` work beside a torchvision whose operators do not load."""

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_package_imports_nothing_heavy_and_prepares_torchvision_when_it_is_imported():
    code = """
import sys, fl_lightning
from fl_lightning._torchvision import TorchvisionFinder
count = lambda: sum(isinstance(each, TorchvisionFinder) for each in sys.meta_path)
print("torch" in sys.modules, count())
import fl_lightning, lightning, torchvision
print(hasattr(__import__("torch").ops.torchvision, "nms"), count())
"""
    assert run(code).split() == ["False", "1", "True", "0"]


def test_missing_operators_are_defined_and_nothing_is_done_where_they_load():
    code = """
import fl_lightning, torch
from pathlib import Path
from fl_lightning import _torchvision
_torchvision._loads = lambda libraries: True
_torchvision._define_missing_operators()
print(hasattr(torch.ops.torchvision, "qnms"))
_torchvision._loads = lambda libraries: False
_torchvision._define_missing_operators()
print(hasattr(torch.ops.torchvision, "qnms"))
"""
    assert run(code).split() == ["False", "True"]
