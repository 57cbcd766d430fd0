"""What a run leaves in W&B besides its curves: tables and pictures of classes, clients and objective, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.callbacks.checkpoint import RoundCheckpoint
from fl_lightning.callbacks.recorder import RunRecorder
from fl_lightning.data.federation import label_counts
from fl_lightning.figures.diagnosis import objective_figure
from fl_lightning.figures.partition import partition_figure
from fl_lightning.runs.storage import checkpoints
from fl_lightning.types import IntVector

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

MAX_ROWS = 10_000  # of a table: more than W&B shows


def media(loop: "FederatedLoop", pictures: bool) -> dict[str, Any]:
    """Return tables (and pictures) of what the run's recorder counted; nothing where the run has no recorder.

    Args:
        loop: Of the run, after its last round.
        pictures: Whether to draw the partition and the objective as well; costs about a second.
    """
    recorder = next((each for each in loop.callbacks if isinstance(each, RunRecorder)), None)
    if recorder is None:
        return {}
    import wandb

    accuracy, clients = recorder.class_accuracy, recorder.client_columns(loop.round_index)
    found: dict[str, Any] = {"clients": _table({"client": range(len(clients["weight"])), **clients})}
    if accuracy:
        found["accuracy_of_classes"] = _table({"class": range(len(accuracy)), "accuracy": accuracy})
    counts = _label_counts(loop, len(accuracy))
    if counts is not None:
        client, label = np.nonzero(counts)
        found["partition"] = _table({"client": client, "class": label, "examples": counts[client, label]})
    if pictures:
        figure = objective_figure(np.asarray(clients["weight"]), np.asarray(clients["effective_weight"]))
        found["objective_picture"] = wandb.Image(_pixels(figure), caption="Omega (bars) against w (line)")
    if pictures and counts is not None:
        names = [str(index) for index in range(counts.shape[1])]
        found["partition_picture"] = wandb.Image(_pixels(partition_figure(counts, names)), caption="who holds what")
    return found


def _table(columns: Mapping[str, Any]) -> Any:
    import wandb

    rows = zip(*(np.asarray(values)[:MAX_ROWS].tolist() for values in columns.values()), strict=True)
    return wandb.Table(columns=list(columns), data=[list(row) for row in rows])


def _label_counts(loop: "FederatedLoop", num_classes: int) -> IntVector | None:
    """Return the examples of each client and class; None where there are no classes or too many clients to show."""
    if not num_classes or len(loop.client_weights) > MAX_ROWS:
        return None
    federation: Any = loop.federation
    try:
        return label_counts(federation, num_classes)
    except Exception:  # batches of any structure are allowed, and not all of them hold a label
        return None


def _pixels(figure: Any) -> Any:
    """Return a drawn figure as an array, without matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def model_artifact(loop: "FederatedLoop", name: str) -> Any:
    """Return the weights that the recorder wrote as an artifact; None where there are none."""
    recorder = next((each for each in loop.callbacks if isinstance(each, RunRecorder)), None)
    files = [recorder.run_dir / file for file in ("model.ckpt", "model_last.ckpt")] if recorder else []
    return _artifact(f"model-{name}", "model", [file for file in files if file.is_file()])


def checkpoint_artifact(loop: "FederatedLoop", name: str) -> Any:
    """Return the newest checkpoint as an artifact; None where there is none."""
    saver = next((each for each in loop.callbacks if isinstance(each, RoundCheckpoint)), None)
    newest = checkpoints(saver.folder)[-1:] if saver else []
    return _artifact(f"checkpoint-{name}", "checkpoint", [path for _, path in newest])


def _artifact(name: str, kind: str, files: list[Path]) -> Any:
    if not files:
        return None
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for file in files:
        artifact.add_file(str(file))
    return artifact
