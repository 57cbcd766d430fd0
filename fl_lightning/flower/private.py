"""What is used of Flower that is not public: every name, and the versions it was tried with. Imports nothing heavy.

Flower starts a new process for each message, which imports torch and Lightning anew, and runs the code that the
server's app brings along; it has no setting for anything else. A node replaces the names in ``REPLACED`` instead: its
messages are answered in forks of one process, by this package's own client app alone. ``--stock`` replaces none.
"""

import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace

OLDEST = (1, 41)
BELOW = (1, 43)
REPLACED = {
    "flwr.supercore.superexec.run_superexec.get_executor": "starts a process for each message; ours forks",
    "flwr.supernode.runtime.run_clientapp.install_from_fab": "writes the server's files here; ours writes nothing",
    "flwr.supernode.runtime.run_clientapp.get_load_client_app_fn": "loads the server's client app; ours has its own",
    "flwr.supernode.start_client_internal.time": "a SuperNode sleeps for 3 s between two looks for messages",
}
USED = {
    "flwr.common.config.get_project_dir": "the folder of the app that a SuperLink runs",
    "flwr.supercore.constant.TaskType": "what an executor can be asked for",
    "flwr.supercore.superexec.executor.ExecutionSpec": "a message that is to be answered",
    "flwr.supercore.superexec.executor.LaunchResult": "what an executor returns",
    "flwr.supercore.superexec.run_superexec.run_superexec": "fetches messages from the SuperNode",
    "flwr.supernode.cli.flower_supernode": "the command that is a SuperNode",
    "flwr.supernode.runtime.run_clientapp.run_clientapp": "answers one message",
}


def check_version(stock: bool = False) -> None:
    """Refuse a version of Flower whose private side nobody has looked at.

    Args:
        stock: Whether Flower is run as it is, in any version.

    Raises:
        ImportError: With the version that is installed, the wanted ones, and what to do.
    """
    wanted = f"flwr>={_text(OLDEST)},<{_text(BELOW)}"
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ImportError("flwr is not installed: pip install 'fl-lightning[flower]' (Python 3.11 or newer)") from None
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if not stock and not (numbers and OLDEST <= (int(numbers[1]), int(numbers[2])) < BELOW):
        raise ImportError(
            f"flwr {found} is installed, but nodes replace private functions of {wanted}: pip install '{wanted}', or "
            "use --stock, which lets the server's app run its own code here"
        )


def _text(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def replace(name: str, by: Callable[..., object] | SimpleNamespace) -> None:
    """Replace one of the names of ``REPLACED`` in this process.

    Raises:
        ImportError: If this version of Flower is not known, or has no such name.
        KeyError: If the name is not in the table.
    """
    reason = REPLACED[name]
    check_version()
    home, _, attribute = name.rpartition(".")
    module = import_module(home)
    if not hasattr(module, attribute):
        raise ImportError(f"flwr {version('flwr')} has no {name} ({reason}): use --stock, or another version of Flower")
    setattr(module, attribute, by)
