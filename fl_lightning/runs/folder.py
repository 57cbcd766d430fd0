"""The folder of a run: who may write there, what is ours, and how one run replaces another without losing either."""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.output import half_written, read_plain, write_durably
from fl_lightning.runs import records
from fl_lightning.runs.locking import FolderLock
from fl_lightning.runs.records import CHECKPOINTS, CONFIG, LOGS, RunError
from fl_lightning.runs.storage import checkpoints, is_checkpoint, is_checkpoint_name

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

MARKER = ".fl_lightning.json"
_FILES = (
    *(MARKER, CONFIG, records.METRICS, records.QUANTILES, records.EVERYBODY, *records.FINAL_FILES),
    *(records.NOISE_KEY, records.UNCOVERED, records.UNCOVERED_CLIENTS),
)
_OURS = (*_FILES, *LOGS)
_MOVING = ".replaced.tmp"
_ASIDE = ".replaced"
_HALF = re.compile(r"\.round_.*\.tmp")
_DISK = ("lost+found", _ASIDE)  # what may lie beside checkpoints on a disk of their own
_OUR_KEYS = {"loop", "model", "data", "fabric", "seed"}  # of a complete config


class RunFolder:
    """Holds the folder of a run for as long as the run lasts.

    A run that starts anew sets what was there before aside, in ``.replaced``, and deletes it when its own first
    checkpoint is safe. If it ends before that, for whatever reason, the earlier run is put back: at once, or when the
    folder is used again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FolderLock(path)
        self._made: list[Path] = []
        self._unwritable: OSError | None = None
        self._marker: dict[str, object] = {}
        self._replaces = False

    def claim(self) -> None:
        """Take the folder for this process, unless it holds what is not ours or another process trains there."""
        refuse_foreign(self.path)
        try:
            self._made = [each for each in (self.path, *self.path.parents) if not each.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:  # a finished run in an archive is still recognised as finished
            self._unwritable = OSError(error.errno, f"cannot write to {self.path}: {error.strerror}")
            return
        for folder in (self.path, self.path / CHECKPOINTS):
            for file in half_written(folder, lambda name: name in _FILES or is_checkpoint_name(name)):
                file.unlink()
        self._recover()

    def prepare(self, config: str, identity: dict[str, object], anew: bool) -> None:
        """Make everything ready for training; ``anew``: what is there belongs to another run."""
        if self._unwritable is not None:
            raise self._unwritable
        if anew:
            self._set_aside()
        _refuse_links_out(self.path)
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
        # With a checkpoint, the new run is the one to resume, though it failed: the next claim drops the earlier one.
        put_back = self._replaces and not checkpoints(self.path / CHECKPOINTS)
        self._replaces = False
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

    def _recover(self) -> None:
        """Finish what a killed process began."""
        if _is_folder(self.path / _MOVING):
            self._move_back()
        elif _is_folder(self.path / _ASIDE):
            if checkpoints(self.path / CHECKPOINTS):
                self._drop()
            else:
                self._put_back()
        elif _is_folder(self.path / CHECKPOINTS / _ASIDE) and not checkpoints(self.path / CHECKPOINTS):
            self._move_back()  # their disk was away when the rest was put back

    def _set_aside(self) -> None:
        names = [name for name in _OURS if os.path.lexists(self.path / name)]
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
        for path in (self.path / name for name in _OURS):
            shutil.rmtree(path) if _is_folder(path) else path.unlink(missing_ok=True)
        (self.path / _ASIDE).rename(self.path / _MOVING)
        self._move_back()

    def _move_back(self) -> None:
        for home, aside in ((self.path, _MOVING), (self.path / CHECKPOINTS, _ASIDE)):
            if _is_folder(home / aside):
                for name in filter(_is_our_name, os.listdir(home / aside)):
                    (home / aside / name).rename(home / name)
                (home / aside).rmdir()

    def _drop(self) -> None:
        shutil.rmtree(self.path / CHECKPOINTS / _ASIDE, ignore_errors=True)
        shutil.rmtree(self.path / _ASIDE, ignore_errors=True)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_our_name(name: str) -> bool:
    return name in _OURS or is_checkpoint_name(name)


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
    for aside in (run_dir / _MOVING, run_dir / _ASIDE, run_dir / CHECKPOINTS / _ASIDE):
        if os.path.lexists(aside) and not (_is_folder(aside) and all(map(_is_our_name, os.listdir(aside)))):
            raise RunError(f"{aside} is not a folder in which a run sets an earlier one aside: move it away")
    link = run_dir / CHECKPOINTS
    if not link.is_symlink():
        return
    where = f"{link} is a link to {os.readlink(link)}, which"
    if not link.exists():
        raise RunError(f"{where} is not there: bring it back (is the disk mounted?), or remove the link")
    for name in os.listdir(link) if link.is_dir() else ():
        if not (is_checkpoint_name(name) or name in _DISK or _HALF.fullmatch(name)):
            raise RunError(
                f"{where} holds {name!r} and is not for checkpoints alone: let it point to a folder of its own"
            )


def _refuse_links_out(run_dir: Path) -> None:
    """Raise RunError if a logger would write through a link to somewhere else."""
    for folder in (run_dir / name for name in LOGS):
        for path in (folder, *folder.rglob("*")):
            if path.is_symlink() and (path == folder or not path.resolve().is_relative_to(folder.resolve())):
                raise RunError(f"{path} is a link to {os.readlink(path)}, outside of {folder}: remove it")


def _is_ours(run_dir: Path) -> bool:
    if marker(run_dir) or _is_folder(run_dir / _MOVING) or _is_folder(run_dir / _ASIDE):
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
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_plain(run_dir / MARKER, records.LARGEST_TEXT))
        if isinstance(content, dict) and "config_hash" in content:
            return content
    return {}
