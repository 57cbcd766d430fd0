"""Files that are complete or not there, and that tell when they are damaged."""

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

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
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}; what was there before is intact") from None


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
    """Write a checkpoint: one line with format, checksum and length, then the content."""
    payload = encode(content)
    header = f"fl_lightning checkpoint {FORMAT} {hashlib.sha256(payload).hexdigest()} {len(payload)}\n"
    write_durably(path, header.encode() + payload)


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
