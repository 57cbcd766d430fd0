"""What a server of any framework keeps while it runs: the log of its rounds, and what it has learned of its clients."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from fl_lightning.audit import words
from fl_lightning.audit.cures import cures
from fl_lightning.audit.estimate import Wanted, audit
from fl_lightning.audit.log import LogWriter, Row, read_log
from fl_lightning.theory.checks import Vector, one_of

LOG = "participation.csv"
_FAILURE_RATE = 0.1  # before anything was seen
_PRIOR_ROUNDS = 2.0  # for how many questions that counts


class Book:
    """Writes rounds into a log; keeps which clients the log knows, and nothing of earlier rounds.

    Args:
        path: Of the log; one that has the name is replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.asked: Counter[str] = Counter()  # draws of the round
        self._writer: LogWriter | None = LogWriter(path)
        self._seen: set[str] = set()
        self._others: list[str] = []

    def ask(self, counts: Counter[str], everybody: Iterable[str]) -> None:
        """Note who is asked in a round, how often, and who could have been."""
        self.asked = counts
        self._others = [name for name in everybody if name not in self._seen and name not in counts]

    def receive(self, index: int, arrived: Mapping[str, Row]) -> None:
        """Write a round: rows of those that arrived, and who was lost or is new and was not asked."""
        rows = [Row(round=index, client=name, asked=0, arrived=0) for name in self._others]
        lost = {name: Row(round=index, client=name, asked=number, arrived=0) for name, number in self.asked.items()}
        rows += [arrived.get(name, row) for name, row in lost.items()]
        self._seen.update(row.client for row in rows)
        if self._writer is None:
            return
        try:
            self._writer.write(rows)
        except OSError as error:  # a full disk must not end somebody's training
            self._writer = None
            print(f"fl-lightning: no more is written to {self.path}: {error}", flush=True)

    def show(self, wanted: Wanted | None, note: str = "") -> None:
        """Print what the log says so far."""
        console = Console(width=words.WIDE)
        try:
            found = audit(read_log(self.path), wanted=wanted)
            words.show(console, found, cures(found), str(self.path))
        except (OSError, ValueError) as error:
            console.print(f"no verdict: {error}", markup=False)
        if note:
            console.print(note, markup=False)


@dataclass(kw_only=True)
class Learned:
    """What is known of each client, by its name."""

    wanted: Wanted
    bound: float  # steps count as at most so many times more or fewer than the median client's
    asked: Counter[str] = field(default_factory=Counter)  # rounds
    answered: Counter[str] = field(default_factory=Counter)  # rounds
    steps: dict[str, float] = field(default_factory=dict)  # mean of what it reported
    examples: dict[str, float] = field(default_factory=dict)  # as reported last

    def __post_init__(self) -> None:
        one_of("wanted", self.wanted, Wanted)
        if not 1 <= self.bound < math.inf:
            raise ValueError(f"bound={self.bound} must be a number of at least 1")

    def observe(self, asked: Iterable[str], reports: Mapping[str, tuple[float, float | None]]) -> None:
        """Learn from a round: who was asked, and steps and examples of who answered."""
        self.asked.update(set(asked))
        for name, (steps, examples) in reports.items():
            self.answered[name] += 1
            before = self.steps.get(name, steps)
            self.steps[name] = before + (steps - before) / self.answered[name]
            if examples is not None:
                self.examples[name] = examples

    def weights(self, names: Sequence[str], given: Mapping[str, float] | None = None) -> Vector:
        """Return what is wanted, up to a factor; a client that is not known is taken as the mean of the others."""
        known = self.examples if given is None else given
        size = float(np.mean(list(known.values()))) if known else 1.0
        return np.array([known.get(name, size) if self.wanted == "examples" else 1.0 for name in names])

    def failure_rates(self, names: Sequence[str]) -> Vector:
        """Return q, with a prior."""
        asked = np.array([self.asked[name] for name in names], dtype=np.float64)
        lost = asked - np.array([self.answered[name] for name in names])
        return (_PRIOR_ROUNDS * _FAILURE_RATE + lost) / (_PRIOR_ROUNDS + asked)

    def bounded_steps(self, names: Sequence[str], given: Mapping[str, float] | None = None) -> Vector:
        """Return T as learned, or as given, within the bound; the median where it is not known."""
        known = self.steps if given is None else given
        usual = float(np.median(list((self.steps or known).values())))
        return np.clip([known.get(name, usual) for name in names], usual / self.bound, usual * self.bound)


def check_epochs(epochs: float | None, batch_size: int | None, what: str) -> None:
    """Refuse one without the other."""
    if (epochs is None) != (batch_size is None):
        raise ValueError(f"epochs and batch_size make {what} together: give both or neither")
    if epochs is not None and batch_size is not None and not (epochs > 0 and batch_size >= 1):
        raise ValueError(f"epochs={epochs} must be above 0, and batch_size={batch_size} at least 1")
