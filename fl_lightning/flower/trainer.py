"""The process that trains for a SuperNode: everything is imported and loaded once, each message gets a fork of it.

Only this package's own client app runs here, whatever the server's app holds; :mod:`fl_lightning.flower.supernode` says
which functions of Flower are replaced for that.
"""

import os
import signal
from collections.abc import Mapping

import torch
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fl_lightning.config.allow_list import limit_imports
from fl_lightning.flower.client_app import app, data_of
from fl_lightning.flower.node_settings import UNASSIGNED, read_node
from fl_lightning.flower.supernode import replace
from fl_lightning.flower.task import parser


class ForkingExecutor:
    """Flower's executor of tasks: answers each message in a fork of this process.

    The threads are those of a fork; this process keeps to one, because threads do not survive a fork.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._owner = os.getpid()
        self._children: set[int] = set()

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """Return client apps: nothing else is run here."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(
        self,
        task_type: TaskType | None = None,
        *,
        fab_hash: str | None = None,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> None:
        """Return at once."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Fork."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"a node runs client apps alone, not {spec.task_type}")
        child = os.fork()
        if child:
            self._children.add(child)
            return LaunchResult.accepted()
        code = 1
        try:
            torch.set_num_threads(self._threads)
            run_clientapp(
                runtime_api_address=spec.runtime_api_address,
                token=spec.token,
                insecure=spec.insecure,
                parent_pid=spec.parent_pid,
                runtime_dependency_install=False,
            )
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        finally:
            os._exit(code)

    def reconcile(self) -> None:
        """Let go of forks that have ended."""
        for child in list(self._children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._children.remove(child)

    def close(self) -> None:
        """End the forks; Flower calls this in a fork as well, which has none."""
        if os.getpid() == self._owner:
            for child in self._children:
                os.kill(child, signal.SIGTERM)


def answer(address: str, secret: bytes, node_config: Mapping[str, str | int]) -> None:
    """Load this node's data, then answer what its SuperNode at the address gets, until the SuperNode ends.

    By the secret, the SuperNode knows this process.
    """
    node = read_node(node_config)
    threads = node.threads or torch.get_num_threads()
    torch.set_num_threads(1)
    who = "a client whose number the server decides" if node.client == UNASSIGNED else f"client {node.client}"
    print(f"{who} has {data_of(node).size} examples", flush=True)
    parser()
    limit_imports(node.trust)
    executor = ForkingExecutor(threads)
    replace("flwr.supercore.superexec.run_superexec.get_executor", lambda *given, **named: executor)
    replace("flwr.supernode.runtime.run_clientapp.install_from_fab", lambda *given, **named: None)
    replace("flwr.supernode.runtime.run_clientapp.get_load_client_app_fn", lambda **named: lambda *names: app)
    run_superexec(runtime_api_address=address, insecure=True, superexec_auth_secret=secret, parent_pid=os.getppid())
