"""Ctrl-C and SIGTERM: finish the round, save, and say how to go on."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"\nstopping after this round; press Ctrl-C again to stop at once\n"


@dataclass
class Interruption:
    """Which signal came, if any."""

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell reports for a command that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def interruptible(loop: "FederatedLoop") -> Iterator[Interruption]:
    """Let the first signal pause the loop after its round; a second Ctrl-C stops at once."""
    interruption = Interruption()

    def pause(number: int, frame: FrameType | None) -> None:
        if interruption.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        interruption.signal = number
        loop.interrupted = True
        os.write(2, _NOTE)  # print could be in the middle of a line of its own

    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, pause) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
