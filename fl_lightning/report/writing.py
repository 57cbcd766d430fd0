"""Writing a report's files."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_lightning.figures.style import NotInstalledError
from fl_lightning.output import write_durably
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.figures import write_figures
from fl_lightning.report.page import page
from fl_lightning.report.tables import all_tables
from fl_lightning.runs.reading import Problem

_LOG = logging.getLogger("fl_lightning")


def write(comparison: Comparison, problems: Sequence[Problem], out: Path, figures: bool = True) -> list[Path]:
    """Write the page, the tables and, if wanted, the figures; return the files.

    What cannot be made without a package is left out, with a warning that says how to install it.
    """
    for name in ("tables", "figures", "wandb"):
        if (out / name).is_symlink():
            raise ValueError(f"{out / name} is a link to {os.readlink(out / name)}: remove it, or give another --out")
    (out / "tables").mkdir(parents=True, exist_ok=True)
    files = []
    with _if_installed("page"):
        files.append(_put(out / "index.html", page(comparison, problems)))
    for table in all_tables(comparison):
        stem = out / "tables" / table.name
        files.append(_put(stem.with_suffix(".csv"), table.to_csv()))
        files.append(_put(stem.with_suffix(".md"), table.to_markdown()))
        files.append(_put(stem.with_suffix(".tex"), table.to_latex()))
    if figures:
        with _if_installed("figures"):
            files += write_figures(comparison, out / "figures")
    return files


@contextmanager
def _if_installed(what: str) -> Iterator[None]:
    try:
        yield
    except NotInstalledError as error:
        _LOG.warning("no %s: %s", what, error)


def _put(path: Path, text: str) -> Path:
    """Write a file so that nobody ever sees half of it."""
    write_durably(path, text.encode())
    return path
