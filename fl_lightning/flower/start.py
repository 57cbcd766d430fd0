"""What the processes of a node run: ``python -m fl_lightning.flower.start supernode SECONDS|trainer ...``."""

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_LOOK_SECONDS = 0.5


def end_with_parent() -> None:
    """End this process when the one that started it has ended, however that came about."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os._exit(143)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


def look_often(seconds: float) -> None:
    """Let a SuperNode look for messages more often than every 3 s, which Flower has no setting for."""
    from flwr.supernode import start_client_internal

    waiting: Any = start_client_internal
    waiting.time = SimpleNamespace(sleep=lambda wanted: time.sleep(min(wanted, seconds)))


def main(arguments: list[str]) -> None:
    """Be a SuperNode, or train for one."""
    end_with_parent()
    role, *rest = arguments
    if role == "supernode":
        from flwr.supernode.cli import flower_supernode

        seconds, *flags = rest
        if float(seconds):
            look_often(float(seconds))
        sys.argv = ["flower-supernode", *flags]
        flower_supernode()
    else:
        from fl_lightning.flower.trainer import answer

        address, secret, config, client, trust = rest
        try:
            answer(address, Path(secret).read_bytes(), {"config": config, "client": int(client), "trust": trust})
        except (ValueError, OSError, ImportError) as error:  # what the node's owner can fix, in one line
            print(f"fl-lightning: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
            sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
