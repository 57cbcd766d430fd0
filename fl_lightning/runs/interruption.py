"""Ctrl-C and SIGTERM: finish the round, save, and say how to resume."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"\nstopping after this round; press Ctrl-C again to stop at once\n"


class Interrupted(BaseException):
    """A signal came when there was nothing to save yet.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@dataclass
class Interruption:
    """Which signal came, if any."""

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell reports for a command that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def interruptible(pause: Callable[[], bool]) -> Iterator[Interruption]:
    """Let the first signal pause a run after its round; a second Ctrl-C, or one before training, stops at once.

    Args:
        pause: Asks the run to pause, and returns whether it will: False when there is nothing to save yet.
    """
    interruption = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if interruption.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not pause():
            raise Interrupted(number)
        interruption.signal = number
        with suppress(OSError):  # nobody reads it
            os.write(2, _NOTE)  # print could be in the middle of a line of its own

    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
