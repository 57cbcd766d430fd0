"""Starting several processes: none waits in silence or for ever, and none is left behind. Imports nothing heavy."""

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fl_lightning.config.compose import ConfigError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

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
    script = getattr(main, "__file__", None)
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


def watch_parent() -> None:
    """In a process that another training process started: end when that one ends, whatever is being waited for."""
    parent = os.environ.get(_PARENT)
    if parent is not None and parent.isdigit() and os.environ.get("LOCAL_RANK", "0") != "0":
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

    Args:
        fabric: Where to compute.
        timeout: Seconds to wait for them; then this process and those it started end with exit code 2.
    """
    if not 0 < timeout < math.inf:
        raise ConfigError(f"start_timeout={timeout} must be a positive number of seconds")
    if fabric.world_size == 1:
        fabric.launch()
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[_PARENT] = str(os.getpid())
    met = threading.Event()
    nodes = int(getattr(fabric.strategy, "num_nodes", 1))
    threading.Thread(target=_wait, args=(met, fabric.world_size, nodes, timeout), daemon=True).start()
    try:
        fabric.launch()
    finally:
        met.set()


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
