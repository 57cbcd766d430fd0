"""What is shown while a command works, and what is not. Imports nothing heavy."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading(what: str = "PyTorch and Lightning") -> Iterator[None]:
    """Say what is being loaded, unless it is there already; in a terminal the line goes away afterwards."""
    if "torch" in sys.modules or os.environ.get("LOCAL_RANK", "0") != "0":  # the first process speaks for all
        yield
        return
    in_terminal = sys.stderr.isatty()
    print(f"loading {what} ...", end="" if in_terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if in_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@contextmanager
def only_planning() -> Iterator[None]:
    """Keep warnings about training back while rounds are planned that nobody trains."""
    logger = logging.getLogger("fl_lightning")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
