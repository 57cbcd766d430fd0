"""``fl-lightning dashboard``: a W&B workspace and a W&B report of a comparison, saved there or kept in a file."""

import argparse
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.config.compose import ConfigError

_AXES = ("round", "local_steps", "computation_time", "synchronous_time", "uplink_bytes")
_TO_TARGET = ("rounds_to_target", *(f"{axis}_to_target" for axis in _AXES[1:]))
_ONLY_TRAINING = "JobType = 'train'"  # the run that holds the report page is none to compare
_TEXTS = {
    "Accuracy": "Mean of the runs of each algorithm, with its standard deviation, smoothed; against rounds, local "
    "steps, computation time (all clients together), synchronous time (the slowest client of each round) and "
    "bytes that were uploaded.",
    "To the target": "What it took to reach the target. A run that never reached it has `reached` = false and no bar: "
    "compare bars only where all runs have one.",
    "Objective": "chi-square is the distance of the objective that is optimised (Omega) from the one that was asked "
    "for (w). 0 means as asked for.",
    "Settings": "Where the runs differ.",
}


def description(project: str, entity: str | None, name: str) -> dict[str, Any]:
    """Return workspace and report in plain words: sections of panels, runs grouped by algorithm."""

    def curve(title: str, y: str, x: str = "round", log_y: bool = False) -> dict[str, Any]:
        return {"kind": "line", "title": title, "x": x, "y": y, "log_y": log_y}

    def bar(metric: str) -> dict[str, Any]:
        return {"kind": "bar", "title": metric.replace("_", " "), "metric": metric}

    accuracy = [curve(f"test accuracy by {axis.replace('_', ' ')}", "test_accuracy", axis) for axis in _AXES]
    averaged = curve("test accuracy of the averaged model", "averaged_accuracy")
    losses = [curve("test loss", "test_loss"), curve("train loss", "train_loss")]
    objective = [curve("chi-square of the objective", "chi2"), curve("step length", "step_length")]
    links = [curve("clients drawn", "num_sampled"), curve("uploads arrived", "num_delivered")]
    sections: dict[str, list[dict[str, Any]]] = {
        "Accuracy": [*accuracy, averaged],
        "To the target": [bar(metric) for metric in (*_TO_TARGET, "best_accuracy")],
        "Objective": [*objective, curve("learning rate", "learning_rate")],
        "Clients": [{"kind": "media", "keys": ["objective_picture", "partition_picture"]}],
        "Loss": losses,
        "Participation": [*links, curve("time of each round", "round_time")],
        "Settings": [{"kind": "settings"}],
    }
    return {
        "name": name,
        "project": project,
        "entity": entity,
        "group_by": "algorithm",
        "filter": _ONLY_TRAINING,
        "sections": sections,
        "report": {"title": name, "texts": {key: text for key, text in _TEXTS.items() if key in sections}},
    }


def _modules() -> tuple[Any, Any]:
    try:
        return import_module("wandb_workspaces.reports.v2"), import_module("wandb_workspaces.workspaces")
    except ModuleNotFoundError:
        raise ImportError("wandb-workspaces is not installed: pip install 'fl-lightning[dashboard]'") from None


def _panel(one: Mapping[str, Any]) -> Any:
    reports, _ = _modules()
    if one["kind"] == "line":
        return reports.LinePlot(
            title=one["title"],
            x=one["x"],
            y=[one["y"]],
            log_y=one["log_y"],
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
            smoothing_type="exponentialTimeWeighted",
            smoothing_factor=0.6,
            smoothing_show_original=False,
            max_runs_to_show=100,
        )
    if one["kind"] == "bar":
        return reports.BarPlot(
            title=one["title"],
            metrics=[reports.SummaryMetric(one["metric"])],
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
        )
    if one["kind"] == "media":
        return reports.MediaBrowser(media_keys=list(one["keys"]))
    return reports.RunComparer(diff_only=True)


def build(described: dict[str, Any], entity: str) -> Any:
    """Return the workspace of a description."""
    _, workspaces = _modules()
    try:
        return workspaces.Workspace(
            entity=entity,
            project=described["project"],
            name=described["name"],
            sections=[
                workspaces.Section(name=name, panels=[_panel(one) for one in panels], is_open=True)
                for name, panels in described["sections"].items()
            ],
            settings=workspaces.WorkspaceSettings(x_axis="round", max_runs=100),
            runset_settings=workspaces.RunsetSettings(
                groupby=[workspaces.Config(described["group_by"])], filters=described["filter"]
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"this is no description of a dashboard: {error!r}") from None


def build_report(described: dict[str, Any], entity: str) -> Any:
    """Return the report of a description: a text and a grid of panels for each section, over the training runs."""
    reports, _ = _modules()
    try:
        about, group = described["report"], f"config.{described['group_by']}"
        runs = {"name": "training runs by algorithm", "filters": described["filter"], "groupby": [group]}
        blocks: list[Any] = [reports.TableOfContents()]
        for name, panels in described["sections"].items():
            blocks.append(reports.H1(text=name))
            if name in about["texts"]:
                blocks.append(reports.MarkdownBlock(text=about["texts"][name]))
            blocks.append(reports.PanelGrid(runsets=[reports.Runset(**runs)], panels=[_panel(one) for one in panels]))
        return reports.Report(
            project=described["project"],
            entity=entity,
            title=about["title"],
            description="Made by `fl-lightning dashboard`.",
            blocks=blocks,
            width="fluid",
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"this is no description of a dashboard: {error!r}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--file {path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--file {path} is no JSON: {error}") from None
    if not isinstance(described, dict):
        raise ConfigError(f"--file {path} must hold a table, as `fl-lightning dashboard` writes it")
    return described


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning dashboard", description=__doc__, allow_abbrev=False)
    parser.add_argument("--project", help="W&B project of the comparison: the name of its folder, unless given")
    parser.add_argument("--entity", help="W&B user or team (default: yours)")
    parser.add_argument("--name", default="Comparison of algorithms", help="what workspace and report are called")
    parser.add_argument("--file", help="a description written before, instead of a project")
    parser.add_argument(
        "--out", default="dashboard.json", help="file to write without a login (default: dashboard.json)"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Save workspace and report when logged in, else write them down with the command for later."""
    options = make_parser().parse_args(arguments)
    if bool(options.project) == bool(options.file):
        raise ConfigError("give the --project of a comparison, or a --file written before")
    described = (
        _read(Path(options.file)) if options.file else description(options.project, options.entity, options.name)
    )
    entity = options.entity or described.get("entity")
    for make in (build, build_report):
        make(described, entity or "nobody")  # what cannot be built is told before anything is written
    from fl_lightning.callbacks.wandb import has_key

    if has_key():
        import wandb

        entity = entity or str(wandb.Api().default_entity)
        for what, make in (("workspace", build), ("report", build_report)):
            print(f"{what} saved: {make(described, entity).save().url}")
        return 0
    out = Path(options.file or options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    print(f"{out}: workspace and report, not saved to W&B because nobody is logged in. Later:")
    print(f"  wandb login && fl-lightning dashboard --file {out}")
    return 0
