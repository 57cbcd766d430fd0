"""``fl-lightning dashboard``: a W&B workspace and a W&B report of a comparison, saved there or kept in a file."""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.cli.main import OneLineParser
from fl_lightning.config.compose import ConfigError
from fl_lightning.output import not_installed

if TYPE_CHECKING:
    from types import ModuleType

    import wandb
    from wandb_workspaces.reports.v2.interface import Report
    from wandb_workspaces.workspaces import Workspace

_AXES = ("round", "local_steps", "computation_time", "synchronous_time", "uplink_bytes")
_TO_TARGET = ("rounds_to_target", *(f"{axis}_to_target" for axis in _AXES[1:]))
_MONITOR = "test_accuracy"  # where the runs are not known, or do not agree
_ONLY_TRAINING = "JobType = 'train'"  # the run that holds the report page is none to compare
_CURVES = (
    "Mean of the runs of each algorithm, with its standard deviation, smoothed; against rounds, local steps, "
    "computation time (all clients together), synchronous time (the slowest client of each round) and bytes that were "
    "uploaded."
)
_TEXTS = {
    "To the target": "What it took to reach the target. A run that never reached it has `reached` = false and no bar: "
    "compare bars only where all runs have one.",
    "Objective": "chi-square is the distance of the objective that is optimised (Omega) from the one that was asked "
    "for (w). 0 means as asked for.",
    "Settings": "Where the runs differ.",
}


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Which comparison is shown: all else is the same for each."""

    project: str
    name: str
    entity: str | None = None
    monitor: str | None = None  # the headline metric of its runs; None: as they say once somebody is logged in

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str) and not (name in ("entity", "monitor") and value is None):
                raise ConfigError(f"{name}={value!r} of a dashboard must be a text")


def _modules() -> tuple["ModuleType", "ModuleType"]:
    try:
        return import_module("wandb_workspaces.reports.v2"), import_module("wandb_workspaces.workspaces")
    except ModuleNotFoundError:
        raise ImportError(not_installed("wandb-workspaces", "dashboard")) from None


def sections(monitor: str) -> dict[str, list[object]]:
    """Return the panels by their section, that of the headline metric first; runs are grouped by algorithm."""
    reports, _ = _modules()
    name, words = monitor.removeprefix("test_"), monitor.replace("_", " ")
    grouped = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}

    def curve(title: str, y: str, x: str = "round") -> object:
        return reports.LinePlot(
            title=title,
            x=x,
            y=[y],
            smoothing_type="exponentialTimeWeighted",
            smoothing_factor=0.6,
            smoothing_show_original=False,
            max_runs_to_show=100,
            **grouped,
        )

    def bar(metric: str) -> object:
        return reports.BarPlot(title=metric.replace("_", " "), metrics=[reports.SummaryMetric(metric)], **grouped)

    headline = [curve(f"{words} by {axis.replace('_', ' ')}", monitor, axis) for axis in _AXES]
    objective = [curve("chi-square of the objective", "chi2"), curve("step length", "step_length")]
    links = [curve("clients drawn", "num_sampled"), curve("uploads arrived", "num_delivered")]
    made = {_title(monitor): [*headline, curve(f"{words} of the averaged model", f"averaged_{name}")]}
    return made | {
        "To the target": [bar(metric) for metric in (*_TO_TARGET, f"best_{name}")],
        "Objective": [*objective, curve("learning rate", "learning_rate")],
        "Clients": [reports.MediaBrowser(media_keys=["objective_picture", "partition_picture"])],
        "Loss": [*made.get("Loss", []), curve("test loss", "test_loss"), curve("train loss", "train_loss")],
        "Participation": [*links, curve("time of each round", "round_time")],
        "Settings": [reports.RunComparer(diff_only=True)],
    }


def _title(monitor: str) -> str:
    return monitor.removeprefix("test_").replace("_", " ").capitalize()


def build(dashboard: Dashboard, entity: str) -> "Workspace":
    """Return the workspace."""
    _, workspaces = _modules()
    panels_of = sections(dashboard.monitor or _MONITOR)
    return workspaces.Workspace(
        entity=entity,
        project=dashboard.project,
        name=dashboard.name,
        sections=[workspaces.Section(name=name, panels=panels, is_open=True) for name, panels in panels_of.items()],
        settings=workspaces.WorkspaceSettings(x_axis="round", max_runs=100),
        runset_settings=workspaces.RunsetSettings(groupby=[workspaces.Config("algorithm")], filters=_ONLY_TRAINING),
    )


def build_report(dashboard: Dashboard, entity: str) -> "Report":
    """Return the report: a text and a grid of panels for each section, over the training runs."""
    reports, _ = _modules()
    runs = {"name": "training runs by algorithm", "filters": _ONLY_TRAINING, "groupby": ["config.algorithm"]}
    blocks = [reports.TableOfContents()]
    monitor = dashboard.monitor or _MONITOR
    texts = {_title(monitor): _CURVES} | _TEXTS
    for name, panels in sections(monitor).items():
        blocks.append(reports.H1(text=name))
        if name in texts:
            blocks.append(reports.MarkdownBlock(text=texts[name]))
        blocks.append(reports.PanelGrid(runsets=[reports.Runset(**runs)], panels=panels))
    return reports.Report(
        project=dashboard.project,
        entity=entity,
        title=dashboard.name,
        description="Made by `fl-lightning dashboard`.",
        blocks=blocks,
        width="fluid",
    )


def _monitored(api: "wandb.Api", project: str) -> str | None:
    """Return the headline metric that the training runs of a project have in common, as their configs say."""
    found = {run.config.get("loop", {}).get("monitor") for run in api.runs(project, filters={"jobType": "train"})}
    return found.pop() if len(found) == 1 else None


def _read(path: Path) -> Dashboard:
    try:
        return Dashboard(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"--file {path} cannot be read: {error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"--file {path} is none that `fl-lightning dashboard` writes: {error}") from None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning dashboard", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--project", help="W&B project of the comparison: the name of its folder, unless given")
    add("--entity", help="W&B user or team (default: yours)")
    add("--name", default="Comparison of algorithms", help="what workspace and report are called")
    add("--file", help="a description written before, instead of a project")
    add("--out", default="dashboard.json", help="file to write without a login (default: dashboard.json)")
    return parser


def main(arguments: list[str]) -> int:
    """Save workspace and report when logged in, else write down which, with the command for later."""
    options = make_parser().parse_args(arguments)
    if bool(options.project) == bool(options.file):
        raise ConfigError("give the --project of a comparison, or a --file written before")
    if options.file:
        dashboard = _read(Path(options.file))
    else:
        dashboard = Dashboard(project=options.project, name=options.name, entity=options.entity)
    entity = options.entity or dashboard.entity
    for make in (build, build_report):
        make(dashboard, entity or "nobody")  # what cannot be built is shown before anything is written
    from fl_lightning.callbacks.wandb import has_key, refuse_workspace_settings

    refuse_workspace_settings()
    if has_key():
        import wandb

        api = wandb.Api()
        entity = entity or str(api.default_entity)
        dashboard = replace(dashboard, monitor=dashboard.monitor or _monitored(api, f"{entity}/{dashboard.project}"))
        for what, make in (("workspace", build), ("report", build_report)):
            print(f"{what} saved: {make(dashboard, entity).save().url}")
        return 0
    out = Path(options.file or options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(asdict(dashboard), indent=2) + "\n", encoding="utf-8")
    print(f"{out}: workspace and report, not saved to W&B because nobody is logged in. Later:")
    print(f"  wandb login && fl-lightning dashboard --file {out}")
    return 0
