"""``python -m benchmarks.reproduction``: fold runs into compact results, and make tables and pictures of these."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.reproduction import ends, runs
from benchmarks.reproduction.classes import averaged_classes
from benchmarks.reproduction.documents import Store, renew, renewed
from benchmarks.reproduction.picture import COLOURS
from benchmarks.reproduction.runs import Run

ROOT = Path(__file__).resolve().parents[2]
RESULTS, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
SHOWN = "limitedfedacs,fedacscv,fedacs,workaware,fednova,cafedavg,fedau,fedvarp,scaffold,fedavg"
GALLERY = ("--config", "digits.yaml", "--algorithms", SHOWN, "--seeds", "0:3", "--logger", "none")
PAGES = ("reproduction", "rivals", "cost", "private", "leaderboard")
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in PAGES))


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    collect = commands.add_parser("collect", help="read run folders, READING/ALGORITHM/seed_N, and store them")
    collect.add_argument("folders", nargs="+", type=Path, help="readings, or folders that contain them")
    collect.add_argument(
        "--classes",
        action="store_true",
        help="measure each class of the averaged model for the pictures: seconds per run",
    )
    study = commands.add_parser(
        "ends", help="read run folders, SYSTEM/SETTING/ALGORITHM/seed_N, and store how they end"
    )
    study.add_argument("name", choices=("private", "attacks"), help="of the study")
    study.add_argument("folders", nargs="+", type=Path, help="systems, or folders that contain them")
    tables = commands.add_parser("tables", help="write the tables and pictures of README.md and docs")
    tables.add_argument("--check", action="store_true", help="change nothing; fail where a table is not up to date")
    commands.add_parser("gallery", help="run the comparison of docs/gallery and write its page: minutes")
    options = parser.parse_args(arguments)
    if options.command == "collect":
        try:
            return _collect(options.folders, options.classes)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    if options.command == "ends":
        return _ends(options.name, options.folders)
    if options.command == "gallery":
        return _gallery()
    return _check() if options.check else _tables()


def _gallery() -> int:
    from fl_lightning.cli.main import main as fl_lightning

    out = Path("runs") / "gallery_digits"
    failed = fl_lightning(["compare", *GALLERY, "--out", str(out)])
    if not failed:
        (ROOT / "docs" / "gallery" / "digits.html").write_bytes((out / "report" / "index.html").read_bytes())
    return failed


def _ends(name: str, folders: list[Path]) -> int:
    path = RESULTS / f"{name}.csv"
    fresh, unfinished = ends.find(folders)
    merged = ends.merge(ends.read(path), fresh)
    ends.write(path, merged)
    print(f"{name}: {len(fresh)} runs read, {len(merged)} stored, {path.stat().st_size / 1000:.0f} kB")
    print("\n".join(f"not finished, left out: {folder}" for folder in unfinished))
    return 0


def _collect(folders: list[Path], classes: bool) -> int:
    absent = [folder for folder in folders if not folder.is_dir()]
    if absent:
        print(f"{absent[0]} is no folder: name those that fl-lightning compare --out has written", file=sys.stderr)
        return 2
    found, left_out = runs.find(folders)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for reading, pairs in sorted(found.items()):
        path = RESULTS / f"{reading}.csv"
        stored = runs.read(path)
        fresh = [_with_classes(run, folder, stored) if classes else run for run, folder in pairs]
        merged = runs.merge(stored, fresh, reading)
        runs.write(path, merged)
        print(f"{reading}: {len(fresh)} runs read, {len(merged)} stored, {path.stat().st_size / 1000:.0f} kB")
    print("\n".join(left_out))
    return 0


def _with_classes(run: Run, folder: Path, stored: list[Run]) -> Run:
    """Return a run with the accuracy of each class of its averaged model, if a picture shows it."""
    if run.algorithm not in COLOURS:
        return run
    known = [each for each in stored if (each.algorithm, each.seed) == (run.algorithm, run.seed)]
    if known and len(known[0].averaged_classes) and np.array_equal(known[0].steps, run.steps):
        return replace(run, averaged_classes=known[0].averaged_classes)
    return replace(run, averaged_classes=averaged_classes(folder))


def _tables() -> int:
    changed = [path for document in DOCUMENTS for path in renew(document, Store(RESULTS), IMAGES)]
    print("\n".join(f"written: {path.relative_to(ROOT)}" for path in changed) or "everything was up to date")
    return 0


def _check() -> int:
    stale = [path.name for path in DOCUMENTS if renewed(path.read_text(), Store(RESULTS)) != path.read_text()]
    print("\n".join(f"{name} is not up to date: run python -m benchmarks.reproduction tables" for name in stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
