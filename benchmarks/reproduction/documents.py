"""Documents with generated parts: what stands between two marks is replaced, everything else is left alone.

A mark is a comment such as ``<!-- generated: reading mnist_cyclic_server -->``; the part ends with ``<!-- end -->``.

=====================================  =====================================================================
``reading NAME [ALGORITHM,...]``       all about a reading, of all or some algorithms
``summary NAME [ALGORITHM,...]``       the same in a few columns
``across ALGORITHM NAME...``           one algorithm in several readings
``paper DATA NAME...``                 Table 2 and Figure 4 of the paper, row by row, from the first reading that has it
``explanations NAME...``               rounds to the target of FedACS and FedAvg, as they are and smoothed
``tuned NAME``                         each algorithm with its best rate, from NAME and NAME_lr<rate>
``overview ALGORITHM,... NAME...``     where some algorithms stand in several readings
``cost NAME``                          accuracy at equal time on the clock
``private SYSTEM``                     accuracy without noise and at each epsilon, from private.csv
``attacks SYSTEM``                     accuracy under each attack, from attacks.csv
``leaderboard VERSION``                all tables of a suite, from VERSION.csv
=====================================  =====================================================================

A picture ``images/results_NAME.svg`` is drawn for each reading that a document shows so, ``images/cost_NAME.svg`` by
the clock, and ``images/paper_NAME.svg`` beside the printed numbers.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reproduction import cost, ends, figure4, picture, runs, tables, verdicts
from benchmarks.reproduction.runs import Run
from fl_lightning.report import leaderboard

_PART = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_PICTURE = re.compile(r"images/(results|cost|paper)_(\w+)\.svg")
_DRAW = {"results": picture.draw, "cost": cost.draw, "paper": figure4.draw}
_PLACES = ("local", "server", "split")  # of the calibration, the last word of a reading's name


@dataclass(frozen=True)
class Store:
    """The stored results."""

    folder: Path

    def runs(self, reading: str) -> list[Run]:
        """Return the runs of a reading; none where nothing is stored."""
        return runs.read(self.folder / f"{reading}.csv")

    def reference(self, reading: str) -> list[Run]:
        """Return FedAvg's runs for a reading that has none: its calibration factor is 1 in all places."""
        if any(run.algorithm == tables.REFERENCE for run in self.runs(reading)):
            return []
        stem, _, place = reading.rpartition("_")
        others = [f"{stem}_{other}" for other in _PLACES if place in _PLACES and other != place]
        for other in others:
            found = [run for run in self.runs(other) if run.algorithm == tables.REFERENCE]
            if found:
                return found
        return []

    def rates(self, reading: str) -> dict[float, list[Run]]:
        """Return the runs of a reading by their learning rate."""
        files = [self.folder / f"{reading}.csv", *sorted(self.folder.glob(f"{reading}_lr*.csv"))]
        stored = [runs.read(path) for path in files]
        return {each[0].lr: each for each in stored if each}


def generated(words: list[str], store: Store) -> str:
    """Return the part that a mark asks for."""
    match words:
        case ["reading", name, *only]:
            shown = [each for names in only for each in names.split(",")]
            return tables.reading_table(store.runs(name), store.reference(name), shown)
        case ["summary", name, *only]:
            shown = [each for names in only for each in names.split(",")]
            return tables.summary_table(store.runs(name), store.reference(name), shown)
        case ["across", algorithm, *names]:
            readings = {name: (store.runs(name), store.reference(name)) for name in names}
            return tables.across_table(algorithm, readings)
        case ["paper", data, *names]:
            return verdicts.paper_table(data, {name: store.runs(name) for name in names})
        case ["explanations", *names]:
            return verdicts.explanations_table({name: store.runs(name) for name in names})
        case ["limits", free, limited]:
            return tables.limits_table(store.runs(free), store.runs(limited))
        case ["tuned", name]:
            return tables.tuned_table(store.rates(name))
        case ["overview", algorithms, *names]:
            return tables.overview_table({name: store.runs(name) for name in names}, algorithms.split(","))
        case ["cost", name]:
            return cost.table(store.runs(name))
        case ["private", system]:
            return ends.private_table(ends.read(store.folder / "private.csv"), system)
        case ["attacks", system]:
            return ends.attack_table(ends.read(store.folder / "attacks.csv"), system)
        case ["leaderboard", version]:
            rows = leaderboard.read_rows(store.folder / f"{version}.csv")
            return leaderboard.to_markdown(leaderboard.tables(rows, "fedacs"))
    raise ValueError(
        f"'generated: {' '.join(words)}' is unknown: use reading, summary, across, paper, explanations, limits, "
        "tuned, overview, cost, private, attacks or leaderboard"
    )


def renewed(text: str, store: Store) -> str:
    """Return a document with its generated parts as the stored results have them."""
    return _PART.sub(lambda part: f"{part[1]}{generated(part[2].split(), store)}\n{part[3]}", text)


def renew(document: Path, store: Store, images: Path) -> list[Path]:
    """Write the generated parts of a document and the pictures that it shows; return what changed."""
    before = document.read_text()
    after = renewed(before, store)
    changed = [document] if after != before else []
    document.write_text(after)
    for kind, reading in sorted(set(_PICTURE.findall(after))):
        path = images / f"{kind}_{reading}.svg"
        old = path.read_bytes() if path.is_file() else b""
        _DRAW[kind]([*store.runs(reading), *store.reference(reading)], path)
        changed += [path] if path.read_bytes() != old else []
    return changed
