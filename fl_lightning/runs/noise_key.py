"""The key of a private run's noise: a file in the run's folder that only its owner can read."""

import os
import stat
from pathlib import Path

from fl_lightning.runs.records import RunError

_BYTES = 32


def kept_key(path: Path, new: bytes, resumed: bool) -> bytes:
    """Return the key of a run: a resumed one has it in its folder; a new one is written there, in place of any other.

    Args:
        path: The file.
        new: The key of a run that starts.
        resumed: Whether the run resumes an earlier one.

    Raises:
        RunError: If the key of the earlier run is gone, or others can read it.
    """
    if resumed:
        return _read(path)
    path.unlink(missing_ok=True)  # a link goes, not what it names
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{new.hex()}\n")
        file.flush()
        os.fsync(file.fileno())
    return new


def _read(path: Path) -> bytes:
    again = "bring the file back, or start anew with --resume never"
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise RunError(f"{path} has the key of the noise and cannot be read, {error.strerror}: {again}") from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or (os.name != "nt" and status.st_mode & 0o077):
            raise RunError(f"{path} must be a file that only its owner can read (chmod 600): others may know the noise")
        text = file.read(4 * _BYTES).decode("ascii", "replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise RunError(f"{path} does not hold a key of {_BYTES} bytes: {again}")
    return key
