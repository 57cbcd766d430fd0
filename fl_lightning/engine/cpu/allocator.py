"""Keep freed memory instead of returning it to the system."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt, from malloc.h
_KEEP_BELOW, _KEEP_ALWAYS = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed; return whether that was possible.

    The activations of a step are tens of megabytes. By default glibc maps such blocks from the system and gives them
    back when they are freed, so each step pays again for clearing every page. Where there is no glibc, nothing happens;
    nor does it where the environment already sets the allocator (``MALLOC_*``, or another one by ``LD_PRELOAD``).
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "alloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  there only in glibc
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # One arena: those of other threads are cut into heaps of 64 MB and give large blocks back.
    mallopt(_ARENA_MAX, 1)
    return bool(mallopt(_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP_ALWAYS))
