"""What a private run measures and its epsilon does not cover: files of their own, off by default, for their owner."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_warn

from fl_lightning.callbacks.client_table import write_client_table
from fl_lightning.callbacks.metrics_file import MetricsFile
from fl_lightning.loop import FederatedLoop
from fl_lightning.runs.noise_key import kept_key
from fl_lightning.runs.records import NOISE_KEY, UNCOVERED, UNCOVERED_CLIENTS
from fl_lightning.types import RoundResult

Columns = dict[str, npt.NDArray[np.generic]]
PUBLIC = (
    "size",
    "weight",
    "effective_weight",
    "num_steps",
    "offered_steps",
    "failure_rate",
    "expected_draws",
)  # of a client
_OF_DRAWS = ("draws", "deliveries")


class Uncovered:
    """The files of a private run that are not for others: its key, and what its epsilon leaves out.

    Args:
        run_dir: The folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._metrics = MetricsFile(run_dir / UNCOVERED, ("round",))

    def start(self, loop: FederatedLoop) -> None:
        """Give the noise its key, and start the file or remove that of an earlier run."""
        noise, secret = loop.algorithm.uploads.noise, loop.algorithm.uploads.secret
        if noise is not None and secret is not None:
            noise.key = kept_key(self.run_dir / NOISE_KEY, noise.key, resumed=loop.round_index > 0)
        else:
            (self.run_dir / NOISE_KEY).unlink(missing_ok=True)
        if secret is not None and secret.keeps_uncovered:
            rank_zero_warn(f"{UNCOVERED} says more about a client than epsilon does: it is for nobody but its owner")
            self._metrics.start(loop.round_index)
            self._metrics.path.chmod(0o600)
            return
        for name in (UNCOVERED, UNCOVERED_CLIENTS):
            (self.run_dir / name).unlink(missing_ok=True)

    def append(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Add a round, where this is asked for."""
        secret = loop.algorithm.uploads.secret
        if secret is not None and secret.keeps_uncovered:
            self._metrics.append({"round": result.metrics["round"], **result.uncovered})
            self._metrics.path.chmod(0o600)

    def split(self, loop: FederatedLoop, columns: Columns) -> Columns:
        """Return the columns of the clients that may be shown; write the others where this is asked for."""
        secret = loop.algorithm.uploads.secret
        if secret is None:
            return columns
        shown = PUBLIC if secret.secret_draws else (*PUBLIC, *_OF_DRAWS)
        if secret.keeps_uncovered:
            path = self.run_dir / UNCOVERED_CLIENTS
            write_client_table(path, {name: values for name, values in columns.items() if name not in shown})
            path.chmod(0o600)
        return {name: columns[name] for name in columns if name in shown}


def without_uncovered(loop: FederatedLoop, summary: Mapping[str, object]) -> dict[str, object]:
    """Return a summary without what a private run's epsilon does not cover: counts of rejections, and real time."""
    hidden = ("rejected_updates", "rejected_updates_by_client", "seconds")
    private = loop.algorithm.uploads.secret is not None
    return {name: value for name, value in summary.items() if not (private and name in hidden)}
