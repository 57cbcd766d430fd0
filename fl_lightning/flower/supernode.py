"""A node: a SuperNode, and the process that answers for it; each ends with the other. Imports nothing heavy.

Both are started as ``fl_lightning.flower.supernode supernode SECONDS ...`` and ``... trainer ...``.
"""

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType, SimpleNamespace

from fl_lightning.config.processes import python_command
from fl_lightning.flower.private import check_version, replace

# Nothing is sent to Flower's makers, and nothing is installed because a server says so.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
_LOOK_SECONDS, _STOP_SECONDS = 0.2, 10.0  # between two looks at a process, and until it is killed
_PARENT_SECONDS = 0.5  # between two looks whether the parent is still there


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

    Args:
        options: Of the command line.
        config: Of the node.
        client: Its number.
        secret: File by which the two know each other.
    """
    port = options.port or free_port()
    start = python_command("fl_lightning.flower.supernode")
    poll = "0" if options.stock else str(options.poll)
    supernode = [*start, "supernode", poll, "--superlink", options.superlink]
    supernode += ["--host", "127.0.0.1", "--port", str(port)]
    supernode += ["--node-config", node_config(config, client, options.trust)]
    supernode += ["--isolation", "subprocess" if options.stock else "process"]
    for flag, value in (
        ("--root-certificates", options.root_certificates),
        ("--auth-supernode-private-key", options.private_key),
    ):
        supernode += [flag, value] if value else []
    supernode += ["--insecure"] if options.insecure else []
    if options.stock:
        return [supernode]
    supernode += ["--superexec-auth-secret-file", secret]
    return [supernode, [*start, "trainer", f"127.0.0.1:{port}", secret, config, str(client), ",".join(options.trust)]]


def serve(options: argparse.Namespace, config: str, client: int) -> int:
    """Run the processes of a node until a signal comes or one of them ends; then end the other.

    Returns:
        0 after a signal, 1 where a process ended by itself: a supervisor should start the node again.
    """
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # Others on this machine can reach the SuperNode's port, but neither get its tasks nor the keys of secure sums.
    with tempfile.TemporaryDirectory(prefix="fl-lightning-") as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(secrets.token_bytes(32))
        _run(commands(options, config, client, str(secret)), signals)
    return 0 if signals else 1


def _run(started: list[list[str]], signals: list[int]) -> None:
    """Run processes until one of them ends or a signal came."""
    environment = os.environ | QUIET | {"PYTHONSAFEPATH": "1"}
    processes = [subprocess.Popen(command, env=environment) for command in started]
    try:
        while not signals and all(process.poll() is None for process in processes):
            time.sleep(_LOOK_SECONDS)
    finally:
        _end(processes)


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


def end_with_parent() -> None:
    """End this process when the one that started it has ended, however that came about."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(143)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


def look_often(seconds: float) -> None:
    """Let a SuperNode look for messages more often than every 3 s, which Flower has no setting for."""
    shorter = SimpleNamespace(sleep=lambda wanted: time.sleep(min(wanted, seconds)))
    replace("flwr.supernode.start_client_internal.time", shorter)


def main(arguments: list[str]) -> None:
    """Be a SuperNode, or train for one."""
    end_with_parent()
    role, *rest = arguments
    # What the node's owner can fix, in one line; what else Flower raises is for its log.
    fixable = (ImportError,) if role == "supernode" else (ValueError, OSError, ImportError)
    try:
        if role == "supernode":
            _be_supernode(*rest)
        else:
            _be_trainer(*rest)
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
