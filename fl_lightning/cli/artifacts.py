"""Logging a report to W&B: the page, the tables and the figures as one artifact, beside the runs."""

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from fl_lightning.report.comparison import Comparison
from fl_lightning.report.tables import final_table


def log_report(folder: Path, comparison: Comparison, project: str) -> None:
    """Log a report as a run of the group ``report``; offline if the runs were. What fails here fails nothing else."""
    from fl_lightning.callbacks.wandb import is_disabled  # heavy: lightning

    try:
        if not is_disabled():
            _log(folder, comparison, project)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        print(f"fl-lightning: the report is not logged to W&B: {type(error).__name__}: {text}", file=sys.stderr)


def _mode(comparison: Comparison) -> Literal["online", "offline"]:
    """Return how the runs were logged: their report follows them."""
    kinds = {path.name.partition("run-")[0] for run in comparison.runs for path in run.folder.glob("wandb/*run-*")}
    return "online" if kinds == {""} else "offline"


def _log(folder: Path, comparison: Comparison, project: str) -> None:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    mode = _mode(comparison)
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
    page = folder / "index.html"
    if page.is_file():  # not without jinja2
        artifact.add_file(str(page), policy="immutable")
    for name in ("tables", "figures"):
        if (folder / name).is_dir():
            artifact.add_dir(str(folder / name), name=name, policy="immutable")
    run.log_artifact(artifact)
    table = final_table(comparison)
    run.log({"final": wandb.Table(columns=list(table.header), data=[list(row) for row in table.rows])})
    if page.is_file():
        run.log({"page": wandb.Html(str(page), inject=False)})
    run.finish()
    print(f"W&B: the report is logged {mode} to the project {run.project}")
