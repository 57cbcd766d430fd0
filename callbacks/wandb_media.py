"""What a run leaves in W&B besides its curves: tables and pictures of classes, clients and objective, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_info

from fl_lightning.callbacks.checkpoint import RoundCheckpoint
from fl_lightning.callbacks.recorder import RunRecorder
from fl_lightning.data.federation import label_counts
from fl_lightning.figures.clients import objective_figure, partition_figure
from fl_lightning.figures.style import NotInstalledError
from fl_lightning.loop import FederatedLoop
from fl_lightning.runs.records import FINAL_FILES
from fl_lightning.runs.storage import checkpoints
from fl_lightning.types import IntVector

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from wandb import Run, Table

Kind = TypeVar("Kind")
MAX_ROWS = 10_000  # of a table: more than W&B shows


def media(loop: FederatedLoop, pictures: bool) -> dict[str, object]:
    """Return tables (and pictures) of what the run's recorder counted; nothing where the run has no recorder."""
    recorder = _callback(loop, RunRecorder)
    if recorder is None:
        return {}
    accuracy, clients = recorder.class_accuracy, recorder.client_columns(loop.round_index)
    found: dict[str, object] = {}
    if accuracy:
        found["accuracy_of_classes"] = _table({"class": range(len(accuracy)), "accuracy": accuracy})
    if loop.algorithm.uploads.secret is not None:
        return found  # who holds what, and how each client took part, is what a private run does not say
    found["clients"] = _table({"client": range(len(clients["weight"])), **clients})
    counts = _label_counts(loop, len(accuracy))
    if counts is not None:
        client, label = np.nonzero(counts)
        names = {"name": clients["name"][client]} if "name" in clients else {}
        found["partition"] = _table({"client": client, **names, "class": label, "examples": counts[client, label]})
    if pictures:
        try:
            found |= _pictures(clients, counts)
        except NotInstalledError as error:
            rank_zero_info(f"W&B: the tables are logged, but no pictures: {error}")
    return found


def _pictures(clients: Mapping[str, Any], counts: IntVector | None) -> dict[str, Any]:
    import wandb

    figure = objective_figure(np.asarray(clients["weight"]), np.asarray(clients["effective_weight"]))
    found = {"objective_picture": wandb.Image(_pixels(figure), caption="Omega (bars) against w (line)")}
    if counts is not None:
        names = [str(index) for index in range(counts.shape[1])]
        found["partition_picture"] = wandb.Image(_pixels(partition_figure(counts, names)), caption="who holds what")
    return found


def _table(columns: Mapping[str, npt.ArrayLike]) -> "Table":
    import wandb

    rows = zip(*(np.asarray(values)[:MAX_ROWS].tolist() for values in columns.values()), strict=True)
    return wandb.Table(columns=list(columns), data=[list(row) for row in rows])


def _label_counts(loop: FederatedLoop, num_classes: int) -> IntVector | None:
    """Return the examples of each client and class; None where there are no classes or too many clients to show."""
    if not num_classes or len(loop.client_weights) > MAX_ROWS:
        return None
    federation: Any = loop.federation
    try:
        return label_counts(federation, num_classes)
    except Exception:  # batches of any structure are allowed, and not all of them hold a label
        return None


def _pixels(figure: "Figure") -> npt.NDArray[np.uint8]:
    """Return a drawn figure as an array, without matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def written_models(loop: FederatedLoop) -> list[Path]:
    """Return the files of weights that the run's recorder wrote."""
    recorder = _callback(loop, RunRecorder)
    files = [recorder.run_dir / name for name in FINAL_FILES if name.startswith("model")] if recorder else []
    return [file for file in files if file.is_file()]


def newest_checkpoint(loop: FederatedLoop) -> list[Path]:
    """Return the newest checkpoint of the run; nothing where there is none."""
    saver = _callback(loop, RoundCheckpoint)
    return [path for _, path in checkpoints(saver.folder)[-1:]] if saver else []


def _callback(loop: FederatedLoop, kind: type[Kind]) -> Kind | None:
    return next((each for each in loop.callbacks if isinstance(each, kind)), None)


def log_files(run: "Run", kind: str, files: list[Path]) -> None:
    """Log files as an artifact of a run."""
    if files:
        import wandb

        artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind)
        for file in files:
            artifact.add_file(str(file))
        run.log_artifact(artifact)
