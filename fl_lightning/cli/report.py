"""``fl-lightning report``: a page, figures and tables from the folders of finished runs."""

import argparse
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fl_lightning.cli.main import OneLineParser, print_json
from fl_lightning.config.compose import ConfigError

if TYPE_CHECKING:
    from fl_lightning.report.comparison import Comparison
    from fl_lightning.report.outcome import Outcome


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning report", description=__doc__, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--out", help="folder to write to (default: report in the first of RUNS)")
    parser.add_argument("--reference", default="fedacs", help="what the others are compared with (default: fedacs)")
    parser.add_argument("--targets", help="accuracies, separated by commas (default: the configs' own)")
    parser.add_argument("--no-figures", action="store_true", help="make no PNG and SVG figures")
    parser.add_argument(
        "--logger",
        choices=("auto", "wandb", "none"),
        default="auto",
        help="log the report to W&B too; auto does so when the runs were logged there",
    )
    parser.add_argument("--project", help="W&B project (default: WANDB_PROJECT, or the name of the first of RUNS)")
    parser.add_json()
    return parser


def as_document(compared: "Comparison") -> dict[str, object]:
    """Return a comparison for programs."""
    from fl_lightning.report.tables import all_tables

    tables = {table.name: list(table.records) for table in all_tables(compared)}
    return {"metric": compared.metric, "reference": compared.reference.name, "tables": tables}


def main(arguments: list[str]) -> int:
    """Read the runs, say what is left out, and write the report."""
    options = make_parser().parse_args(arguments)
    targets = _targets(options.targets)
    from fl_lightning.report.outcome import load

    folders = [Path(name) for name in options.runs]
    outcome = load(folders, warn, options.reference, targets)
    for value in targets:
        if outcome.comparison.metric.endswith("accuracy") and not 0 < value <= 1:
            raise ConfigError(f"--targets {value:g} must be above 0 and at most 1")
    if options.json:  # nothing is written
        print_json(as_document(outcome.comparison))
        return 0
    out = Path(options.out) if options.out else folders[0] / "report"
    if not options.out and out.is_symlink():
        raise ValueError(f"{out} is a link to {os.readlink(out)}: remove it, or give --out")
    project = options.project or os.environ.get("WANDB_PROJECT") or folders[0].resolve().name
    logged = options.logger == "wandb" or (options.logger == "auto" and outcome.logged)
    publish(outcome, out, project if logged else None, figures=not options.no_figures)
    return 0


def warn(text: str) -> None:
    """Show what the user should know, beside the output."""
    print(f"fl-lightning: {text}", file=sys.stderr)


def publish(outcome: "Outcome", out: Path, project: str | None, figures: bool = True) -> None:
    """Write a report, say where it is, and log it to a project of W&B if one is given."""
    files = outcome.write(out, figures)
    compared = outcome.comparison
    print(f"{out / 'index.html'}: {len(compared.entries)} algorithms, {len(compared.runs)} runs, {len(files)} files")
    if project is None:
        return
    from fl_lightning.callbacks.wandb import is_disabled, refuse_workspace_settings  # heavy: lightning

    try:
        if not is_disabled():
            refuse_workspace_settings()
            _log(out, compared, project)
    except Exception as error:  # what fails here fails nothing else
        warn(f"the report is not logged to W&B: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _log(folder: Path, comparison: "Comparison", project: str) -> None:
    """Log page, tables and figures as one artifact of a run of the group ``report``; offline if the runs were."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    from fl_lightning.report.tables import final_table

    kinds = {path.name.partition("run-")[0] for run in comparison.runs for path in run.folder.glob("wandb/*run-*")}
    mode: Literal["online", "offline"] = "online" if kinds == {""} else "offline"
    if mode == "offline":
        shutil.rmtree(folder / "wandb", ignore_errors=True)  # an earlier report, whose files are replaced by now
    run = wandb.init(
        project=project,
        name=f"{comparison.data}_report",
        group="report",
        job_type="report",
        tags=[comparison.data, "report"],
        dir=str(folder),
        mode=mode,
        settings=wandb.Settings(silent=True, console="off"),
        config={"algorithms": [entry.name for entry in comparison.entries], "seeds": comparison.seeds},
    )
    artifact = wandb.Artifact(f"{comparison.data}_report", type="report")
    # Immutable: files are uploaded from where they are, so that the folder alone is enough for a later `wandb sync`.
    artifact.add_file(str(folder / "index.html"), policy="immutable")
    for name in ("tables", "figures"):
        if (folder / name).is_dir():
            artifact.add_dir(str(folder / name), name=name, policy="immutable")
    run.log_artifact(artifact)
    table = final_table(comparison)
    run.log({"final": wandb.Table(columns=list(table.header), data=[list(row) for row in table.rows])})
    run.log({"page": wandb.Html(str(folder / "index.html"), inject=False)})
    run.finish()
    print(f"W&B: the report is logged {mode} to the project {run.project}")


def _targets(text: str | None) -> list[float]:
    try:
        values = {float(part) for part in text.split(",")} if text else set()
    except ValueError:
        values = {math.nan}
    if not all(map(math.isfinite, values)):
        raise ConfigError(f"--targets {text!r} must be numbers separated by commas: 0.5,0.7")
    return sorted(values)
