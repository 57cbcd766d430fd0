"""A lock on a folder that the system releases however the process ends."""

import errno
import json
import os
import socket
import stat
import time
import weakref
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

NAME = ".fl_lightning.lock"


class FolderInUseError(ValueError):
    """Somebody else is writing into the folder."""


class FolderLock:
    """Keeps other processes, also those of other sessions, out of a folder.

    The file is removed when the lock is given back. One that a killed process left behind locks nobody out, because
    the lock is the system's and not the file's presence.

    Whoever comes second is shown the holder's purpose.
    """

    def __init__(self, folder: Path, purpose: str = "a run") -> None:
        self.path = folder / NAME
        self.purpose = purpose
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise FolderInUseError, which says who has it since when."""
        if fcntl is None:
            return
        while self._handle is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(handle)
                os.close(handle)
                raise FolderInUseError(
                    f"{self.path.parent} is in use by {self.purpose} of {holder}: "
                    "wait until it ends, or use another folder"
                ) from None
            except OSError:  # a file system without locks: nothing can be promised there
                os.close(handle)
                return
            status = os.fstat(handle)
            if status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):  # to empty it would change something else
                os.close(handle)
                raise OSError(errno.EINVAL, f"{self.path} is not a plain file of its own")
            with suppress(FileNotFoundError):
                self._handle = handle if os.path.samestat(status, os.stat(self.path)) else None
            if self._handle is None:
                os.close(handle)  # the holder gave it back, and the file with it, between the two steps
        os.ftruncate(self._handle, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        content = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
        os.write(self._handle, json.dumps(content).encode())
        _HELD.add(self)

    def release(self) -> None:
        """Give the lock back."""
        if self._handle is not None:
            self.path.unlink(missing_ok=True)
            self._forget()

    def _forget(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_HELD: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _let_go_in_child() -> None:
    """Close the handles in a forked process, which would else keep the lock after its parent was killed."""
    for lock in list(_HELD):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def _holder(handle: int) -> str:
    try:
        content = json.loads(os.pread(handle, 1000, 0))
        return f"process {content['process']} on {content['host']} since {content['since']}"
    except (ValueError, KeyError, TypeError, OSError):  # it is just writing it
        return "another process"
