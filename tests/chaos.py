"""Orders training processes from ``chaos_server.py``, which starts them quickly; not a test itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

from stored_runs import arguments

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 20


class Server:
    def __init__(self):
        command = [sys.executable, str(ROOT / "tests" / "chaos_server.py")]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def order(self, name, run_dir, rounds=None, seconds=0.0, resume="auto", more=()):
        """Train, and kill the process so many seconds after so many rounds, if that is given; return its exit code."""
        self.send(name, run_dir, rounds, seconds, resume, more)
        return self.receive()

    def send(self, name, run_dir, rounds=None, seconds=0.0, resume="auto", more=()):
        command = [*arguments(name, run_dir, ROUNDS, *more), "--resume", resume]
        metrics = str(run_dir / "metrics.csv")
        order = {"arguments": command, "metrics": metrics, "rounds": rounds, "seconds": seconds}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def receive(self):
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.communicate()
