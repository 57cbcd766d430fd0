"""Lightning is imported without matplotlib, scipy.signal and scikit-learn, and nobody misses them."""

import json
import subprocess
import sys

CODE = """
import json, sys
import fl_lightning.config.building
from fl_lightning._deferred import StandIn
late = ("matplotlib", "matplotlib.pyplot", "scipy.signal", "sklearn", "wandb")
before = [name for name in late if name in sys.modules]
import torch
from torchmetrics.classification import MulticlassConfusionMatrix
metric = MulticlassConfusionMatrix(3)
metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
figure, axes = metric.plot()
import matplotlib.pyplot, scipy.signal
real = [hasattr(matplotlib.pyplot, "subplots"), hasattr(scipy.signal, "butter")]
left = [name for name, module in sys.modules.items() if isinstance(module, StandIn)]
print(json.dumps([before, type(figure).__name__, real, left]))
"""


def test_they_are_imported_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], "Figure", [True, True], []]
