"""Interleaved rounds of several sides of one workload; the least of the repeats counts."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

Round = dict[str, Any]


@dataclass
class Side:
    """A process that plays rounds on demand."""

    name: str
    command: list[str]
    rounds: list[Round] = field(default_factory=list)

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.set_up = self._answer()

    def round(self) -> Round:
        """Play one round and return its times in seconds."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """Let the process end."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self) -> Round:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended unexpectedly:\n{self._process.stderr.read()[-3000:]}")
        return json.loads(line)

    def least(self, key: str) -> float:
        """Return the least time of all rounds."""
        return min(entry[key] for entry in self.rounds)


def worker(side: str, workload: str, threads: int, quick: bool, python: str = sys.executable) -> list[str]:
    """Return the command that plays a workload."""
    command = [python, "-m", "benchmarks.worker", side, workload, str(threads)]
    return [*command, "--quick"] if quick else command


def interleave(sides: list[Side], repeats: int, warm_up: int = 1) -> None:
    """Play ``repeats`` rounds of each side in turns; nothing else of ours runs meanwhile."""
    started: list[Side] = []
    try:
        for side in sides:
            side.start()
            started.append(side)
        for index in range(warm_up + repeats):
            for side in sides:
                measured = side.round()
                if index >= warm_up:
                    side.rounds.append(measured)
    finally:
        for side in started:
            side.stop()
