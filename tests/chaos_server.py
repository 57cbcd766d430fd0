"""Starts training processes quickly: imports once, then forks one for each order on standard input.

An order is a line of JSON: ``{"arguments": [...], "seconds": 0.5}``; after so many seconds the process gets SIGKILL, or
never where it is null. The answer is its exit code, or minus the signal that ended it, and the seconds it took.
"""

import contextlib
import json
import os
import signal
import sys
import time

import sklearn.datasets  # noqa: F401
import torch

from fl_lightning.cli.main import main


def serve(arguments: list[str], seconds: float | None) -> tuple[int, float]:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            code = main(["train", *arguments])
        os._exit(code)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.monotonic() - began
        if seconds is not None and time.monotonic() - began > seconds:
            os.kill(child, signal.SIGKILL)
            seconds = None
        time.sleep(0.001)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(serve(**json.loads(line))), flush=True)
