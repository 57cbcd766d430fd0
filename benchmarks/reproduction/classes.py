"""The accuracy of each class of a run's averaged model, measured anew: runs keep that of their last round only."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.reproduction.runs import Vector

_TEST_BATCH = 1000
_TEST_SETS: dict[str, list[Any]] = {}


def averaged_classes(folder: Path) -> Vector:
    """Return the accuracy of each class of ``model.ckpt``, (C,)."""
    import torch
    from jsonargparse import Namespace

    from fl_lightning.config import building
    from fl_lightning.config.parsing import make_parser
    from fl_lightning.engine.evaluation import evaluate

    settings = building.parse(yaml.safe_load((folder / "config.yaml").read_text()), [])
    made = make_parser().instantiate(Namespace(model=settings.model, data=settings.data))
    made.model.load_state_dict(torch.load(folder / "model.ckpt", weights_only=True)["state_dict"])
    key = repr(vars(settings.data))
    if key not in _TEST_SETS:  # the same for all seeds
        _TEST_SETS[key] = list(made.data.load(0).test_batches(_TEST_BATCH))
    _, accuracy = evaluate(made.model, iter(_TEST_SETS[key]))
    return np.asarray(accuracy)
