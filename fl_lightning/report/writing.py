"""Writing a report's files."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.figures.style import NotInstalledError, require
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.tables import all_tables
from fl_lightning.runs.reading import Problem

_LOG = logging.getLogger("fl_lightning")


def write(comparison: Comparison, problems: Sequence[Problem], out: Path, figures: bool = True) -> list[Path]:
    """Write the page, the tables and, if wanted, the figures; return the files.

    What is not installed is left out with a warning that says how to install it.
    """
    (out / "tables").mkdir(parents=True, exist_ok=True)
    files = []
    try:
        files.append(_put(out / "index.html", _page(comparison, problems)))
    except NotInstalledError as error:
        _LOG.warning("no page: %s", error)
    for table in all_tables(comparison):
        stem = out / "tables" / table.name
        files.append(_put(stem.with_suffix(".csv"), table.to_csv()))
        files.append(_put(stem.with_suffix(".md"), table.to_markdown()))
        files.append(_put(stem.with_suffix(".tex"), table.to_latex()))
    try:
        files += _figures(comparison, out / "figures") if figures else []
    except NotInstalledError as error:
        _LOG.warning("no figures: %s", error)
    return files


def _page(comparison: Comparison, problems: Sequence[Problem]) -> str:
    require("jinja2")
    from fl_lightning.report.page import page

    return page(comparison, problems)


def _figures(comparison: Comparison, out: Path) -> list[Path]:
    require("jinja2", "matplotlib")
    from fl_lightning.report.figures import write_figures

    return write_figures(comparison, out)


def _put(path: Path, text: str) -> Path:
    """Write a file so that nobody ever sees half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path
