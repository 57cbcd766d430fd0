"""Files that are complete or not there, and that tell when they are damaged."""

import hashlib
import io
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

_HEADER = re.compile(rb"fl_lightning checkpoint (\d{1,4}) ([0-9a-f]{64}) (\d{1,18})\n")
_HEADER_ROOM = 128
FORMAT = 2  # rises whenever an older program could not read what a newer one writes


class DamagedFileError(ValueError):
    """A file that is not what was written."""


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that it holds, whatever happens, either what it held before or all of the new content.

    The content goes to a file beside it, is forced to the disk and takes the place by a rename, which is forced to the
    disk as well. A full disk or a folder that cannot be written leaves the old file untouched.
    """
    _write(path, lambda file: file.write(content))


def _write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}; what was there before is intact") from None
    finally:
        with suppress(OSError):  # it has taken its place, unless something failed
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def encode(content: Any) -> bytes:
    """Return what ``torch.save`` makes of tensors, numbers, strings and containers of them."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint: one line with format, checksum and length, then the content.

    The content goes to the disk piece by piece, because a copy of it may not fit into the memory.
    """

    def fill(file: BinaryIO) -> None:
        file.write(_header("0" * 64, 0))
        hashed = _Hashed(file)
        try:
            torch.save(content, hashed)  # type: ignore[arg-type]  # it asks for no more than write
        except Exception as error:  # torch's writer has errors of its own for what the disk refused
            raise hashed.error or error from None
        file.seek(0)
        file.write(_header(hashed.digest.hexdigest(), hashed.length))

    _write(path, fill)


def _header(digest: str, length: int) -> bytes:
    return f"fl_lightning checkpoint {FORMAT} {digest} {length:018d}\n".encode()


class _Hashed:
    """Passes what is written on to a file and keeps its checksum and length."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest, self.length = file, hashlib.sha256(), 0
        self.error: OSError | None = None  # the first of the disk

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.digest.update(data)
        self.length += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def is_checkpoint(path: Path) -> bool:
    """Whether a file begins as one that :func:`write_checkpoint` wrote."""
    try:
        with path.open("rb") as file:
            return _HEADER.match(file.read(_HEADER_ROOM)) is not None
    except OSError:
        return False


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what :func:`write_checkpoint` wrote; nothing in the file is ever run as code.

    Raises:
        DamagedFileError: If the file is not a checkpoint, is of a newer format, or was changed since it was written.
    """
    data = path.read_bytes()
    header = _HEADER.match(data[:_HEADER_ROOM])
    if header is None:
        raise DamagedFileError(f"{path} is not a checkpoint of fl_lightning, or its first line is damaged")
    version, digest, length = int(header[1]), header[2].decode(), int(header[3])
    if version > FORMAT:
        raise DamagedFileError(
            f"{path} has format {version}, but this version reads up to {FORMAT}: update fl_lightning"
        )
    payload = memoryview(data)[header.end() :]
    if len(payload) != length or hashlib.sha256(payload).hexdigest() != digest:
        raise DamagedFileError(f"{path} is damaged: its checksum does not match its content")
    try:
        content = torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    except Exception as error:  # the loader has a long list of its own, and refuses code with one of them
        raise DamagedFileError(f"{path} holds something else than a checkpoint ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} holds something else than a checkpoint")
    return content
