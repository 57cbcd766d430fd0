import json
from types import SimpleNamespace

import pytest

from fl_lightning.cli import dashboard
from fl_lightning.config import compose as configs

workspaces = pytest.importorskip("wandb_workspaces.workspaces", reason="the extra `dashboard` is not installed")
DASHBOARD = dashboard.Dashboard(project="compare_digits", name="digits", entity="me")


def test_workspace_has_the_panels_of_a_comparison():
    built = dashboard.build(DASHBOARD, "me")
    assert (built.entity, built.project, built.name) == ("me", "compare_digits", "digits")
    assert [section.name for section in built.sections] == list(dashboard.sections("test_accuracy"))
    spec = json.loads(built._to_model().model_dump_json(by_alias=True))
    text = json.dumps(spec)
    accuracy = built.sections[0].panels
    axes = ["round", "local_steps", "computation_time", "synchronous_time", "uplink_bytes"]
    assert [panel.x for panel in accuracy[:5]] == axes
    assert all(panel.y == ["test_accuracy"] for panel in accuracy[:5])
    assert all((panel.groupby_rangefunc, panel.smoothing_factor) == ("stddev", 0.6) for panel in accuracy)
    for metric in ("chi2", "rounds_to_target", "synchronous_time_to_target", "num_delivered", "objective_picture"):
        assert metric in text
    assert "train" in json.dumps(spec["spec"]["section"]["runSets"][0]["filters"])  # the run of the report is left out


def test_report_has_texts_panels_and_run_sets():
    spec = json.loads(dashboard.build_report(DASHBOARD, "me")._to_model().spec.model_dump_json(by_alias=True))
    text = json.dumps(spec)
    grids = [block for block in spec["blocks"] if block["type"] == "panel-grid"]
    assert len(grids) == len(dashboard.sections("test_accuracy"))
    assert sum(len(grid["metadata"]["panelBankSectionConfig"]["panels"]) for grid in grids) == sum(
        len(panels) for panels in dashboard.sections("test_accuracy").values()
    )
    for grid in grids:
        (runs,) = grid["metadata"]["runSets"]
        assert "algorithm" in json.dumps(runs["grouping"])
        assert "train" in json.dumps(runs["filters"])
    for words in (dashboard._CURVES, *dashboard._TEXTS.values()):
        assert words[:30] in text


def test_without_a_login_it_is_written_down_and_can_be_read_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "deep" / "dashboard.json"
    assert dashboard.main(["--project", "compare_digits", "--out", str(out)]) == 0
    assert f"fl-lightning dashboard --file {out}" in capsys.readouterr().out
    described = json.loads(out.read_text())
    assert dashboard.main(["--file", str(out)]) == 0
    assert json.loads(out.read_text()) == described


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"project": 1, "name": "x", "sections": {"a": [{}]}}', "[" * 9999])
def test_a_spoiled_description_is_refused(tmp_path, text):
    path = tmp_path / "dashboard.json"
    path.write_text(text)
    with pytest.raises((configs.ConfigError, ValueError)):
        dashboard.main(["--file", str(path)])


def test_the_headline_metric_is_read_from_the_runs(monkeypatch, capsys):
    """Where somebody is logged in, the project's runs say what they monitored."""
    built = []

    class Api:
        default_entity = "me"

        def runs(self, path, filters):
            assert (path, filters) == ("me/compare_mine", {"jobType": "train"})
            return [SimpleNamespace(config={"loop": {"monitor": "test_acc"}})] * 2

    def saved(make):
        def build(described, entity):
            made = make(described, entity)
            return SimpleNamespace(save=lambda: built.append(made) or SimpleNamespace(url="there"))

        return build

    monkeypatch.setattr("wandb.Api", Api)
    monkeypatch.setattr("fl_lightning.callbacks.wandb.has_key", lambda: True)
    for name in ("build", "build_report"):
        monkeypatch.setattr(dashboard, name, saved(getattr(dashboard, name)))
    assert dashboard.main(["--project", "compare_mine"]) == 0
    assert capsys.readouterr().out.count("saved: there") == 2
    for made in built:
        model = made._to_model()
        text = model.model_dump_json(by_alias=True)
        assert "test_accuracy" not in text
        for word in ("test_acc", "averaged_acc", "best_acc", "test acc by round"):
            assert word in text


def test_a_monitored_loss_shares_a_section_with_the_other_losses():
    panels = dashboard.sections("test_loss")["Loss"]
    assert [panel.y for panel in panels] == [*[["test_loss"]] * 5, ["averaged_loss"], ["test_loss"], ["train_loss"]]


def test_project_or_file_is_wanted():
    with pytest.raises(configs.ConfigError, match="--project"):
        dashboard.main([])
