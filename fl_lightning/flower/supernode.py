"""A node: a SuperNode, and the process that answers for it; each ends with the other. Imports nothing heavy.

Both are started as ``fl_lightning.flower.supernode supernode SECONDS ...`` and ``... trainer ...``.

Flower starts a new process for each message, which imports torch and Lightning anew, and runs the code that the
server's app brings along; it has no setting for anything else. A node replaces the names in ``REPLACED`` instead: its
messages are answered in forks of one process, by this package's own client app alone. ``--stock`` replaces none.
"""

import argparse
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

from fl_lightning.config.processes import end_with, python_command
from fl_lightning.output import not_installed

OLDEST = (1, 41)
BELOW = (1, 43)
REPLACED = {
    "flwr.supercore.superexec.run_superexec.get_executor": "starts a process for each message; ours forks",
    "flwr.supernode.runtime.run_clientapp.install_from_fab": "writes the server's files here; ours writes nothing",
    "flwr.supernode.runtime.run_clientapp.get_load_client_app_fn": "loads the server's client app; ours has its own",
    "flwr.supernode.start_client_internal.time": "a SuperNode sleeps for 3 s between two looks for messages",
}
# Nothing is sent to Flower's makers, and nothing is installed because a server says so.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
_LOOK_SECONDS, _STOP_SECONDS = 0.2, 10.0  # between two looks at a process, and until it is killed


WANTED = f"flwr>={OLDEST[0]}.{OLDEST[1]},<{BELOW[0]}.{BELOW[1]}"


def version_note() -> str:
    """Return which version of Flower is here where it is not one that was tried; nothing where none is installed."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        return ""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers and OLDEST <= (int(numbers[1]), int(numbers[2])) < BELOW:
        return ""
    return f"flwr {found} is installed, but deployments were tried with {WANTED} alone: pip install '{WANTED}'"


def check_version(stock: bool = False) -> None:
    """Refuse a version of Flower whose private side nobody has looked at, unless Flower is run as it is."""
    try:
        version("flwr")
    except PackageNotFoundError:
        raise ImportError(f"{not_installed('flwr', 'flower')} (Python 3.11 or newer)") from None
    if not stock and (note := version_note()):
        raise ImportError(
            f"{note}; a node replaces private functions of it. --stock lets the server's app run its own code here"
        )


def replace(name: str, by: Callable[..., object] | SimpleNamespace) -> None:
    """Replace one of the names of ``REPLACED`` in this process."""
    reason = REPLACED[name]
    check_version()
    home, _, attribute = name.rpartition(".")
    module = import_module(home)
    if not hasattr(module, attribute):
        raise ImportError(f"flwr {version('flwr')} has no {name} ({reason}): use --stock, or another version of Flower")
    setattr(module, attribute, by)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def node_config(config: str, client: int, trust: list[str]) -> str:
    """Return what Flower hands to the client app as the node's own config.

    >>> node_config("mine.yaml", 3, ["mine"])
    'config="mine.yaml" client=3 trust="mine"'
    """
    text = f'config="{config}" client={client}'
    return text + (f' trust="{",".join(trust)}"' if trust else "")


def commands(options: argparse.Namespace, config: str, client: int, secret: str) -> list[list[str]]:
    """Return the commands of the SuperNode and, unless Flower's own is wanted, of the process that trains.

    ``secret`` is the file by which the two know each other.
    """
    port = options.port or free_port()
    start = python_command("fl_lightning.flower.supernode")
    poll = "0" if options.stock else str(options.poll)
    supernode = [*start, "supernode", poll, "--superlink", options.superlink]
    supernode += ["--host", "127.0.0.1", "--port", str(port)]
    supernode += ["--node-config", node_config(config, client, options.trust)]
    supernode += ["--isolation", "subprocess" if options.stock else "process"]
    if options.root_certificates:
        supernode += ["--root-certificates", options.root_certificates]
    if options.private_key:
        supernode += ["--auth-supernode-private-key", options.private_key]
    supernode += ["--insecure"] if options.insecure else []
    if options.stock:
        return [supernode]
    supernode += ["--superexec-auth-secret-file", secret]
    return [supernode, [*start, "trainer", f"127.0.0.1:{port}", secret, config, str(client), ",".join(options.trust)]]


def serve(options: argparse.Namespace, config: str, client: int) -> int:
    """Run the processes of a node until a signal comes (0) or one of them ends (1), then end the other.

    After 1, a supervisor should start the node again.
    """
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: signals.append(number))
    # Others on this machine can reach the SuperNode's port, but neither get its tasks nor the keys of secure sums.
    with tempfile.TemporaryDirectory(prefix="fl-lightning-") as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(secrets.token_bytes(32))
        environment = os.environ | QUIET | {"PYTHONSAFEPATH": "1"}
        started = commands(options, config, client, str(secret))
        processes = [subprocess.Popen(command, env=environment) for command in started]
        try:
            while not signals and all(process.poll() is None for process in processes):
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(processes)
    return 0 if signals else 1


def _end(processes: list["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_LOOK_SECONDS)
    for process in processes:
        process.kill()  # which does nothing to one that has ended
        process.wait()


def look_often(seconds: float) -> None:
    """Let a SuperNode look for messages more often than every 3 s, which Flower has no setting for."""
    shorter = SimpleNamespace(sleep=lambda wanted: time.sleep(min(wanted, seconds)))
    replace("flwr.supernode.start_client_internal.time", shorter)


def main(arguments: list[str]) -> None:
    """Be a SuperNode, or train for one."""
    end_with(os.getppid())
    role, *rest = arguments
    # What the node's owner can fix, in one line; what else Flower raises is for its log.
    fixable = (ImportError,) if role == "supernode" else (ValueError, OSError, ImportError)
    try:
        (_be_supernode if role == "supernode" else _be_trainer)(*rest)
    except fixable as error:
        print(f"fl-lightning: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(2)


def _be_supernode(seconds: str, *flags: str) -> None:
    if float(seconds):
        look_often(float(seconds))
    from flwr.supernode.cli import flower_supernode

    sys.argv = ["flower-supernode", *flags]
    flower_supernode()


def _be_trainer(address: str, secret: str, config: str, client: str, trust: str) -> None:
    check_version()
    from fl_lightning.flower.trainer import answer

    answer(address, Path(secret).read_bytes(), {"config": config, "client": int(client), "trust": trust})


if __name__ == "__main__":
    main(sys.argv[1:])
