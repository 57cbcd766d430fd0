"""The processes of a run: none waits in silence or for ever, none is left behind, and signals save first.

Imports nothing heavy.
"""

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from fl_lightning.config.compose import ConfigError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"\nstopping after this round; press Ctrl-C again to stop at once\n"
_OF_FABRIC = ("accelerator", "strategy", "devices", "num_nodes", "precision")
_PARENT = "FL_LIGHTNING_PARENT"  # process that started this one, for which alone it works
_SECONDS_BETWEEN_LOOKS = 0.5
_SILENT_SECONDS = 10.0  # that a start on one machine may take without a word


def python_command(module: str) -> list[str]:
    """Return the command that runs a module as ``python -m`` does, but without the working folder on the path.

    What lies there may be a stranger's. ``python -P`` does the same, but Python 3.10 does not know it.
    """
    start = "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    return [sys.executable, "-c", f"{start}runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


@contextmanager
def safe_children() -> Iterator[None]:
    """Keep the working folder off the path of every Python that is started meanwhile, whoever starts it.

    The folder of the script that runs stays on it: Lightning starts the same script again, which may import its
    neighbours. Python 3.10 does not know the variable.
    """
    before = {name: os.environ.get(name) for name in ("PYTHONSAFEPATH", "PYTHONPATH")}
    main = sys.modules["__main__"]
    script = vars(main).get("__file__")
    if script is not None and main.__spec__ is None and not before["PYTHONSAFEPATH"]:
        folder = os.path.dirname(os.path.realpath(script))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before["PYTHONPATH"]]))
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def launched(given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the settings of Fabric that ``fabric run`` or ``torchrun`` made, where those given have none.

    Raises:
        ConfigError: If these want another number of processes than were started.
    """
    found: dict[str, str] = {}
    if os.environ.get("LT_CLI_USED") == "1":
        found = {key: os.environ[f"LT_{key.upper()}"] for key in _OF_FABRIC if f"LT_{key.upper()}" in os.environ}
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        here, everywhere = (int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        found = {"devices": str(here), "num_nodes": str(everywhere // here)}
    for key in ("devices", "num_nodes"):
        wanted, started_with = given.get(f"fabric.{key}") or "", found.get(key, "")
        if wanted.isdigit() and started_with.isdigit() and wanted != started_with:
            started = f"the processes that were started, {key} {started_with}"
            raise ConfigError(f"--fabric.{key} {wanted} does not fit {started}: leave it out")
    for key in found:
        if f"fabric.{key}" in given:
            os.environ.pop(f"LT_{key.upper()}", None)  # Fabric would refuse the other
    return {f"fabric.{key}": value for key, value in found.items() if f"fabric.{key}" not in given}


def watch_parent() -> None:
    """In a process that another training process started: end when that one ends, whatever is being waited for."""
    parent = os.environ.get(_PARENT, "")
    if parent.isdigit() and os.environ.get("LOCAL_RANK", "0") != "0":
        end_with(int(parent))


def end_with(parent: int) -> None:
    """End this process when the one that started it has ended, however that came about."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(143)  # the first process writes all files, so there is nothing to save here

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


def launch(fabric: "Fabric", timeout: float) -> None:
    """Start the other processes of this machine and meet those of others.

    After ``timeout`` seconds of waiting for them, this process and those it started end with exit code 2.
    """
    if not 0 < timeout < math.inf:
        raise ConfigError(f"start_timeout={timeout} must be a positive number of seconds")
    if fabric.world_size > 1:
        atexit.register(_leave)
    if os.environ.get("LT_CLI_USED") == "1":  # Fabric has met the others when it was made
        return
    if fabric.world_size == 1:
        fabric.launch()
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[_PARENT] = str(os.getpid())
    from fl_lightning.engine.machine import num_nodes  # heavy, and this module is read before the command line

    met = threading.Event()
    threading.Thread(target=_wait, args=(met, fabric.world_size, num_nodes(fabric), timeout), daemon=True).start()
    try:
        fabric.launch()
    finally:
        met.set()


def _leave() -> None:
    """Part from the other processes: threads that still wait for one that has ended would abort this one."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _wait(met: threading.Event, num_processes: int, num_nodes: int, timeout: float) -> None:
    """Say what is waited for, and give up in the end: the call that waits cannot be interrupted itself."""
    silent = min(timeout, 1.0 if num_nodes > 1 else _SILENT_SECONDS)
    if met.wait(silent):
        return
    node = os.environ.get("NODE_RANK") or os.environ.get("GROUP_RANK") or "0"
    address = f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', 'a free port')}"
    what = f"{num_processes} processes on {num_nodes} node{'s' * (num_nodes > 1)} (this is node {node})"
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    if first:
        print(f"waiting for all {what} to meet at {address}, for {timeout:g} s (--start_timeout)", file=sys.stderr)
    if met.wait(timeout - silent):
        return
    if first:
        text = f"after {timeout:g} s not all {what} have met at {address}"
        advice = "start the same command on each node with NODE_RANK, MASTER_ADDR and MASTER_PORT set"
        print(f"fl-lightning: error: {text}: {advice}, or raise --start_timeout", file=sys.stderr)
        sys.stderr.flush()
    os._exit(2)


@dataclass
class Interruption:
    """Which signal came, if any."""

    exit_code: int = 0  # what a shell reports for a command that it ended: 130 for Ctrl-C, 143 for SIGTERM


@contextmanager
def interruptible(pause: Callable[[], bool]) -> Iterator[Interruption]:
    """Let the first signal pause a run after its round; a second Ctrl-C, or one before training, stops at once.

    ``pause`` asks the run to pause, and returns whether it will: False when there is nothing to save yet.
    """
    interruption = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if interruption.exit_code and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not pause():
            raise SystemExit(128 + number)
        interruption.exit_code = 128 + number
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
