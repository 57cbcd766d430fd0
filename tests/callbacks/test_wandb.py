"""WandbMetrics with the real library, offline, read back from its file."""

import csv
import json
import sys

import numpy as np
import pytest
from offline import read_back

from fl_lightning.callbacks import ComputationTime, RoundCheckpoint, RunRecorder, WandbMetrics, wandb_media
from fl_lightning.callbacks.wandb import refuse_workspace_settings
from systems import gaussian_federation, linear_module, small_loop


def test_an_offline_run_has_every_round(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    metrics = WandbMetrics(
        project="demo", group="fedacs", tags=["made", "fedacs"], save_dir=str(tmp_path), config={"lr": 0.05},
        target_accuracy=0.1,
    )  # fmt: skip
    loop = small_loop(rounds=3, callbacks=[ComputationTime(), metrics])
    loop.run(linear_module(), gaussian_federation())
    records = read_back(tmp_path)
    text = json.dumps(records)
    history = [record for record in records if record.get("type") == "history"]
    assert len(history) == 3
    for name in (
        "test_accuracy",
        "computation_time",
        "num_sampled",
        "num_delivered",
        "learning_rate",
        "step_length",
        "chi2",
    ):
        assert name in json.dumps(history[-1])
    for word in ("demo", "fedacs", "rounds_to_target", "local_steps_to_target"):
        assert word in text


def merged(records, kind):
    """Return what all records of a kind say together, the last word of each key."""
    return {key: value for one in records if one.get("type") == kind for key, value in one[kind]["update"].items()}


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """An offline run with everything that can be logged, a target that it misses, and its recorder."""
    folder = tmp_path_factory.mktemp("wandb")
    recorder = RunRecorder(str(folder / "run"))
    saver = RoundCheckpoint(str(folder / "run" / "checkpoints"), min_seconds=0)
    metrics = WandbMetrics(save_dir=str(folder), mode="offline", target_accuracy=0.9999, log_model="checkpoint")
    loop = small_loop(rounds=2, callbacks=[ComputationTime(), recorder, metrics, saver])
    loop.run(linear_module(), gaussian_federation())
    return folder, read_back(folder), loop


def test_a_missed_target_is_shown(complete):
    _, records, _ = complete
    summary = merged(records, "summary")
    assert summary["reached"] is False
    for axis in ("rounds", "local_steps", "computation_time", "synchronous_time"):
        assert summary[f"{axis}_to_target"] is None


def test_rounding_noise_of_the_objective_is_logged_as_zero(complete):
    _, records, loop = complete
    assert 0 < max(row["chi2"] for row in loop.record.history) < 1e-12  # FedACS
    assert [one["history"]["item"]["chi2"] for one in records if one.get("type") == "history"] == [0, 0]


def table_of(folder, name):
    (path,) = folder.rglob(f"media/table/{name}_2_*.table.json")
    table = json.loads(path.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def test_clients_classes_and_partition_are_tables(complete):
    folder, _, loop = complete
    with (folder / "run" / "clients.csv").open() as file:
        written = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert table_of(folder, "clients") == written
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [row["accuracy"] for row in table_of(folder, "accuracy_of_classes")] == summary["per_class_accuracy"]
    examples = np.zeros(len(loop.client_weights))
    for row in table_of(folder, "partition"):
        examples[row["client"]] += row["examples"]
    assert examples.tolist() == [row["size"] for row in written]


def test_partition_and_objective_are_pictures(complete):
    folder, records, _ = complete
    for name in ("objective_picture", "partition_picture"):
        (path,) = folder.rglob(f"media/images/{name}_2_*.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        assert name in json.dumps([one for one in records if one.get("type") == "history"][-1])


def test_without_matplotlib_tables_are_logged_alone(complete, monkeypatch):
    _, _, loop = complete
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = []
    monkeypatch.setattr(wandb_media, "rank_zero_info", said.append)
    assert sorted(wandb_media.media(loop, pictures=True)) == ["accuracy_of_classes", "clients", "partition"]
    (line,) = said
    assert line.endswith("no pictures: matplotlib is not installed: pip install -e '.[report]' in your clone")


def test_weights_and_checkpoints_are_artifacts(complete):
    _, records, _ = complete
    found = [one["artifact"] for one in records if one.get("type") == "artifact"]
    files = [(one["type"], file["path"]) for one in found for file in one["manifest"]["contents"]]
    assert ("model", "model.ckpt") in files
    assert [name for kind, name in files if kind == "checkpoint"] == ["round_00000001.ckpt", "round_00000002.ckpt"]


def test_a_wrong_mode_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="mode='loud'"):
        WandbMetrics(mode="loud")
    with pytest.raises(ValueError, match="log_model='some'"):
        WandbMetrics(log_model="some")
    monkeypatch.setenv("WANDB_LOG_MODEL", "sometimes")
    with pytest.raises(ValueError, match="WANDB_LOG_MODEL='sometimes'"):
        WandbMetrics()


@pytest.mark.parametrize(("said", "meant"), [("true", "end"), ("checkpoint", "checkpoint"), ("false", "none")])
def test_wandbs_own_variable_says_what_becomes_an_artifact(said, meant, monkeypatch):
    monkeypatch.setenv("WANDB_LOG_MODEL", said)
    assert WandbMetrics().log_model == meant
    assert WandbMetrics(log_model="none").log_model == "none"


@pytest.mark.parametrize(("name", "value"), [("WANDB_MODE", "disabled"), ("WANDB_DISABLED", "true")])
@pytest.mark.parametrize("mode", ["auto", "offline"])
def test_switched_off_it_leaves_no_files(name, value, mode, tmp_path, monkeypatch):
    monkeypatch.setenv(name, value)
    loop = small_loop(rounds=1, callbacks=[WandbMetrics(save_dir=str(tmp_path), mode=mode)])
    loop.run(linear_module(), gaussian_federation())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_said_about_a_setting_that_nobody_made(tmp_path, capfd):
    metrics = WandbMetrics(save_dir=str(tmp_path), mode="offline")
    metrics.start()
    metrics._close({})
    assert list(tmp_path.glob("wandb/offline-run-*"))
    assert "anonymous" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
@pytest.mark.parametrize(
    "line", ["base_url = http://127.0.0.1:9", "https_proxy = http://127.0.0.1:9", "x_disable_ssl = true", "no equals"]
)
def test_settings_of_the_working_folder_send_the_key_nowhere(tmp_path, monkeypatch, folder, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "settings").write_text(f"[default]\nproject = mine\n{line}\n")
    loop = small_loop(rounds=1, callbacks=[ComputationTime(), WandbMetrics(save_dir=str(tmp_path / "run"))])
    with pytest.raises(ValueError, match="your key to a stranger"):
        loop.run(linear_module(), gaussian_federation())


def test_settings_of_the_working_folder_may_name_project_and_own_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text(
        "[default]\nproject = mine\nentity = me\nbase_url = https://wandb.example.org\n"
    )
    refuse_workspace_settings()
