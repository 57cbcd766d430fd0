"""``fl-lightning dashboard``: a W&B workspace with the panels of a comparison, saved there or kept in a file."""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.cli.configs import ConfigError

_AXES = ("round", "local_steps", "computation_time")
_TO_TARGET = ("rounds_to_target", "local_steps_to_target", "computation_time_to_target")


def description(project: str, entity: str | None, name: str) -> dict[str, Any]:
    """Return the workspace in plain words: sections of panels, runs grouped by algorithm."""

    def curve(title: str, y: str, x: str = "round", log_y: bool = False) -> dict[str, Any]:
        return {"kind": "line", "title": title, "x": x, "y": y, "log_y": log_y}

    def bar(metric: str) -> dict[str, Any]:
        return {"kind": "bar", "title": metric.replace("_", " "), "metric": metric}

    accuracy = [curve(f"test accuracy by {axis.replace('_', ' ')}", "test_accuracy", axis) for axis in _AXES]
    losses = [curve("test loss", "test_loss"), curve("train loss", "train_loss")]
    objective = [curve("chi-square of the objective", "chi2", log_y=True), curve("step length", "step_length")]
    links = [curve("clients drawn", "num_sampled"), curve("uploads arrived", "num_delivered")]
    sections: dict[str, list[dict[str, Any]]] = {
        "Accuracy": accuracy,
        "To the target": [bar(metric) for metric in (*_TO_TARGET, "best_accuracy")],
        "Objective": [*objective, curve("learning rate", "learning_rate")],
        "Loss": losses,
        "Participation": [*links, curve("time of a round", "round_time")],
        "Settings": [{"kind": "settings"}],
    }
    return {"name": name, "project": project, "entity": entity, "group_by": "Group", "sections": sections}


def build(described: dict[str, Any], entity: str) -> Any:
    """Return the ``wandb_workspaces`` object of a description."""
    try:
        reports: Any = import_module("wandb_workspaces.reports.v2")
        workspaces: Any = import_module("wandb_workspaces.workspaces")
    except ModuleNotFoundError:
        raise ImportError("wandb-workspaces is not installed: pip install 'fl-lightning[dashboard]'") from None

    def panel(one: dict[str, Any]) -> Any:
        if one["kind"] == "line":
            return reports.LinePlot(
                title=one["title"],
                x=one["x"],
                y=[one["y"]],
                log_y=one["log_y"],
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
                smoothing_type="none",
                max_runs_to_show=100,
            )
        if one["kind"] == "bar":
            return reports.BarPlot(
                title=one["title"],
                metrics=[reports.SummaryMetric(one["metric"])],
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
            )
        return reports.RunComparer(diff_only=True)

    try:
        return workspaces.Workspace(
            entity=entity,
            project=described["project"],
            name=described["name"],
            sections=[
                workspaces.Section(name=name, panels=[panel(one) for one in panels], is_open=True)
                for name, panels in described["sections"].items()
            ],
            settings=workspaces.WorkspaceSettings(x_axis="round", max_runs=100),
            runset_settings=workspaces.RunsetSettings(groupby=[workspaces.Metric(described["group_by"])]),
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
    parser.add_argument("--name", default="Comparison of algorithms", help="what the workspace is called")
    parser.add_argument("--file", help="a description written before, instead of a project")
    parser.add_argument(
        "--out", default="dashboard.json", help="file to write without a login (default: dashboard.json)"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Save the workspace when logged in, else write it down with the command for later."""
    options = make_parser().parse_args(arguments)
    if bool(options.project) == bool(options.file):
        raise ConfigError("give the --project of a comparison, or a --file written before")
    described = (
        _read(Path(options.file)) if options.file else description(options.project, options.entity, options.name)
    )
    entity = options.entity or described.get("entity")
    build(described, entity or "nobody")  # what cannot be built is told before anything is written
    from fl_lightning.callbacks.wandb import has_key

    if has_key():
        import wandb

        saved = build(described, entity or str(wandb.Api().default_entity)).save()
        print(f"saved: {saved.url}")
        return 0
    out = Path(options.file or options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    print(f"{out}: the workspace, not saved to W&B because nobody is logged in. Later:")
    print(f"  wandb login && fl-lightning dashboard --file {out}")
    return 0
