"""RoundCheckpoint: one file from which a run resumes as if it had never stopped."""

import time
from pathlib import Path
from typing import Any

from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.loop import FederatedLoop
from fl_lightning.output import sync_folder
from fl_lightning.runs.storage import checkpoint_name, checkpoints, write_checkpoint
from fl_lightning.types import RoundResult

_SHARE_OF_TIME = 0.02  # of a run that saving may take


class RoundCheckpoint(RoundCallback):
    """Saves the whole run every few rounds, at the end, and when it is paused; the last two files are kept.

    It must stand last among the callbacks, because it saves what the others know of the round.

    Args:
        folder: Where the files go, as ``round_<number>.ckpt``.
        every_n_rounds: Save after each n-th round.
        min_seconds: Time between two saves, at least; more where saving would take over 2 % of the time. 0 saves after
            each n-th round whatever it costs.
        keep: How many files to keep; older ones are for the case that the newest is damaged.
        about: What else a file carries: the configuration of the run.
    """

    not_in_trainer = "it saves a federated run; use ModelCheckpoint"

    def __init__(
        self,
        folder: str,
        every_n_rounds: int = 1,
        min_seconds: float = 10.0,
        keep: int = 2,
        about: dict[str, Any] | None = None,
    ) -> None:
        for name, value in (("every_n_rounds", every_n_rounds), ("keep", keep)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if not 0 <= min_seconds < float("inf"):
            raise ValueError(f"min_seconds={min_seconds} must be a number of seconds, 0 or more")
        self.folder, self.about = Path(folder), about or {}
        self.every_n_rounds, self.keep = every_n_rounds, keep
        self.min_seconds = min_seconds
        self._next_save = 0.0

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Throw away what an earlier run in this folder saved after the round from which this one starts."""
        self._next_save = time.monotonic() + self.min_seconds
        if loop.fabric.global_rank:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, path in checkpoints(self.folder):
            if number > loop.round_index or not loop.round_index:
                path.unlink()

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Save when it is time."""
        if loop.round_index % self.every_n_rounds == 0 and time.monotonic() >= self._next_save:
            self._save(loop, finished=False)

    def on_federation_pause(self, loop: FederatedLoop) -> None:
        """Save, to be continued."""
        self._save(loop, finished=False)

    def on_federation_end(self, loop: FederatedLoop) -> None:
        """Save for good: a run is finished when this file says so."""
        self._save(loop, finished=True)

    def _save(self, loop: FederatedLoop, finished: bool) -> None:
        if loop.fabric.global_rank or not loop.round_index:
            return
        began = time.monotonic()
        loop.call("on_federation_save")
        write_checkpoint(
            self.folder / checkpoint_name(loop.round_index),
            {**self.about, "finished": finished, "loop": loop.state_dict()},
        )
        for _, path in checkpoints(self.folder)[: -self.keep]:
            path.unlink()
        sync_folder(self.folder)
        loop.call("on_federation_saved")
        now = time.monotonic()
        self._next_save = now + max(self.min_seconds, (now - began) / _SHARE_OF_TIME) if self.min_seconds else 0.0
