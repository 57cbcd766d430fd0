"""A SuperLink and SuperNodes as real processes on this machine, in a folder of their own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fl_lightning.flower.supernode import QUIET, free_port

BIN = Path(sys.executable).parent


def in_group(command: list[str], log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process as the leader of a group, so that it can be killed with all it started, and nothing else."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=log.parent, start_new_session=True
        )


def kill(process: "subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> None:
    """Send a signal to a group and wait for its leader."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(30)


class RealNodes:
    """Use it with ``with``: whatever happens, no process is left over."""

    def __init__(self, folder: Path, security: tuple[list[str], list[str]] | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.of_server, self.of_nodes = security or (["--insecure"], ["--insecure"])
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        ending = "insecure = true" if security is None else f'root-certificates = "{folder / "ca.crt"}"'
        (self.home / "config.toml").write_text(f'[superlink.local]\naddress = "127.0.0.1:{self.port}"\n{ending}\n')
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "RealNodes":
        command = [str(BIN / "flower-superlink"), *self.of_server, "--disable-runtime-dependency-installation"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self.superlink = in_group(command, self.folder / "superlink.log", self.environment)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.nodes.values(), self.superlink):
            kill(process)
        for pid in self.processes():  # of another group
            os.kill(pid, signal.SIGKILL)

    def start(self, client: int, data: Path, *more: str, numbered: bool = True) -> None:
        """Start a node; if not numbered, the server decides which client it is."""
        command = [sys.executable, "-m", "fl_lightning", "node", "--superlink", f"127.0.0.1:{self.port}"]
        command += [*(["--client", str(client)] if numbered else []), "--data", str(data), *self.of_nodes, *more]
        self.nodes[client] = in_group(command, self.folder / f"node_{client}.log", self.environment)

    def flwr(self, *arguments: str, timeout: float = 600) -> None:
        """Run a command of Flower, once the SuperLink can be reached."""
        wait_for(self._listens, timeout, "the start of the SuperLink")
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed: {done.stdout} {done.stderr}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def processes(self, name: str = "") -> list[int]:
        """Return the processes of this federation, known by their environment, with a name in their command."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = f"FLWR_HOME={self.home}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if ours and name.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time so far of the SuperLink, the server, the SuperNodes and their trainers."""
        roles = {"superlink": "flower-superlink", "server": "flwr-serverapp", "supernodes": "start\0supernode"}
        return {role: self._cpu(name) for role, name in (roles | {"trainers": "start\0trainer"}).items()}

    def _cpu(self, name: str) -> float:
        ticks = 0
        for pid in self.processes(name):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))  # its own and that of forks that have ended
        return ticks / os.sysconf("SC_CLK_TCK")


def wait_for(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout:g} s")
        time.sleep(0.1)


def num_rounds(run_dir: Path) -> int:
    """Rounds in a run's metrics so far."""
    file = run_dir / "metrics.csv"
    return max(0, len(file.read_text().splitlines()) - 1) if file.is_file() else 0
