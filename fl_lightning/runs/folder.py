"""The folder of a run: who may write there, what is ours, and how one run replaces another without losing either."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.output import write_durably
from fl_lightning.runs import records
from fl_lightning.runs.locking import FolderLock
from fl_lightning.runs.records import CHECKPOINTS, CONFIG, LOGS, RunError
from fl_lightning.runs.storage import checkpoints, is_checkpoint

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

MARKER = ".fl_lightning.json"
_FILES = (MARKER, CONFIG, records.METRICS, records.QUANTILES, records.EVERYBODY, *records.FINAL_FILES)
_MOVING = ".replaced.tmp"
_ASIDE = ".replaced"
_OUR_KEYS = {"loop", "model", "data", "fabric", "seed"}  # of a complete config


class RunFolder:
    """Holds the folder of a run for as long as the run lasts.

    A run that starts anew sets what was there before aside, in ``.replaced``, and deletes it when its own first
    checkpoint is safe. If it ends before that, for whatever reason, the earlier run is put back: at once, or when the
    folder is used again.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FolderLock(path)
        self._made: list[Path] = []
        self._unwritable: OSError | None = None
        self._marker: dict[str, object] = {}
        self._replaces = False

    def claim(self) -> None:
        """Take the folder for this process, before anything is read or written there.

        Raises:
            RunError: If it holds what is not ours.
            FolderInUseError: If another process trains there.
        """
        refuse_foreign(self.path)
        try:
            self._make()
            self._lock.acquire()
        except OSError as error:  # a finished run in an archive is still recognised as finished
            self._unwritable = OSError(error.errno, f"cannot write to {self.path}: {error.strerror}")
            return
        self._recover()

    def prepare(self, config: str, identity: dict[str, object], anew: bool) -> None:
        """Make everything ready for training.

        Args:
            config: The complete configuration.
            identity: What the marker says of the run.
            anew: Whether the run starts at its first round, so that what is there belongs to another one.
        """
        if self._unwritable is not None:
            raise self._unwritable
        if anew:
            self._set_aside()
        self._marker = {"saved": not anew, **identity}
        self._write_marker()
        write_durably(self.path / CONFIG, config.encode())

    def on_federation_saved(self, loop: "FederatedLoop") -> None:
        """Delete what this run replaces, now that it cannot be lost any more."""
        if not self._marker.get("saved"):
            self._marker["saved"] = True
            self._write_marker()
        if self._replaces:
            self._replaces = False
            self._drop()

    def close(self) -> bool:
        """Let go of the folder; return whether an earlier run was put back."""
        put_back, self._replaces = self._replaces, False
        if put_back:
            with suppress(OSError):  # then the next run in this folder does it
                self._put_back()
        self._lock.release()
        for folder in self._made:  # that nothing was written to
            with suppress(OSError):
                folder.rmdir()
        return put_back

    def _write_marker(self) -> None:
        write_durably(self.path / MARKER, (json.dumps(self._marker, indent=1, default=str) + "\n").encode())

    def _make(self) -> None:
        folder = self.path
        while not folder.exists() and folder != folder.parent:
            self._made.append(folder)
            folder = folder.parent
        self.path.mkdir(parents=True, exist_ok=True)

    def _recover(self) -> None:
        """Finish what a killed process began."""
        if (self.path / _MOVING).is_dir():
            self._move_back()
        elif (self.path / _ASIDE).is_dir():
            if checkpoints(self.path / CHECKPOINTS):
                self._drop()
            else:
                self._put_back()
        elif (self.path / CHECKPOINTS / _ASIDE).is_dir() and not checkpoints(self.path / CHECKPOINTS):
            self._move_back()  # their disk was away when the rest was put back

    def _set_aside(self) -> None:
        names = [name for name in (*_FILES, *LOGS) if os.path.lexists(self.path / name)]
        saved = checkpoints(self.path / CHECKPOINTS)
        if not names and not saved:
            return
        (self.path / _MOVING).mkdir()
        try:
            for name in names:
                (self.path / name).rename(self.path / _MOVING / name)
            if saved:  # beside themselves, because the folder may be a link to another disk
                (self.path / CHECKPOINTS / _ASIDE).mkdir(exist_ok=True)
            for _, file in saved:
                file.rename(file.parent / _ASIDE / file.name)
            (self.path / _MOVING).rename(self.path / _ASIDE)
        except OSError as error:
            self._move_back()
            raise OSError(error.errno, f"cannot set the earlier run in {self.path} aside: {error.strerror}") from None
        self._replaces = True

    def _put_back(self) -> None:
        for name in (*_FILES, *LOGS):
            _remove(self.path / name)
        (self.path / _ASIDE).rename(self.path / _MOVING)
        self._move_back()

    def _move_back(self) -> None:
        for home, aside in ((self.path, _MOVING), (self.path / CHECKPOINTS, _ASIDE)):
            if (home / aside).is_dir():
                for entry in (home / aside).iterdir():
                    entry.rename(home / entry.name)
                (home / aside).rmdir()

    def _drop(self) -> None:
        shutil.rmtree(self.path / CHECKPOINTS / _ASIDE, ignore_errors=True)
        shutil.rmtree(self.path / _ASIDE, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def refuse_foreign(run_dir: Path) -> None:
    """Raise RunError if the run would write over files that no run of ours made."""
    if run_dir.exists() and not run_dir.is_dir():
        raise RunError(f"--run_dir {run_dir} is a file: give a folder")
    taken = [name for name in (*_FILES, CHECKPOINTS, *LOGS) if os.path.lexists(run_dir / name)]
    if taken and not _is_ours(run_dir):
        raise RunError(
            f"{run_dir} has {', '.join(taken)}, but not from a run of fl_lightning: "
            "give another --run_dir, or move these files away"
        )
    link = run_dir / CHECKPOINTS
    if link.is_symlink() and not link.exists():
        raise RunError(
            f"{link} is a link to {os.readlink(link)}, which is not there: bring it back (is the disk mounted?), "
            "or remove the link"
        )


def _is_ours(run_dir: Path) -> bool:
    if marker(run_dir) or (run_dir / _MOVING).is_dir() or (run_dir / _ASIDE).is_dir():
        return True
    with suppress(OSError, ValueError):
        if records.read_config(run_dir).keys() >= _OUR_KEYS:
            return True  # copied without the marker, which is hidden
    folder = run_dir / CHECKPOINTS
    left = [name for name in _FILES if os.path.lexists(run_dir / name)]
    if not left and folder.is_dir() and not any(folder.iterdir()):
        return True  # nothing in it: a mount point or a link made for the run
    return any(is_checkpoint(path) for _, path in checkpoints(folder))


def marker(run_dir: Path) -> dict[str, object]:
    """Return what a run's folder says of the run; empty if it has no marker."""
    try:
        content = json.loads((run_dir / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and "config_hash" in content else {}
