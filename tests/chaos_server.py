"""Starts training processes quickly: imports once, then forks one for each order on standard input.

An order is a line of JSON: ``{"arguments": [...], "metrics": "FILE", "rounds": 3, "seconds": 0.05}``; the process gets
SIGKILL so many seconds after the file has so many rounds, or never where they are null. The answer is its exit code, or
minus the signal that ended it.
"""

import contextlib
import json
import os
import signal
import sys
import time

import torch

from fl_lightning.cli.main import main
from fl_lightning.config import building
from fl_lightning.config import compose as configs


def rounds_in(metrics: str) -> int:
    try:
        with open(metrics, "rb") as file:
            return file.read().count(b"\n") - 1
    except FileNotFoundError:
        return -1


def serve(arguments: list[str], metrics: str, rounds: int | None, seconds: float) -> int:
    due = None
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            code = main(["train", *arguments])
        os._exit(code)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if due is None and rounds is not None and rounds_in(metrics) >= rounds:
            due = time.monotonic() + seconds
        if due is not None and time.monotonic() > due:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.0005)


if __name__ == "__main__":
    torch.set_num_threads(1)
    building.parse(configs.compose(["toy_fedacs.yaml"]), [])  # what all orders need is imported and made before them
    for line in sys.stdin:
        print(json.dumps(serve(**json.loads(line))), flush=True)
