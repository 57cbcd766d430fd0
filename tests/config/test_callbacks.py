"""Every run has some callbacks; those that a config brings replace the defaults of their type."""

import pytest
import yaml

from fl_lightning.callbacks import (
    ComputationTime,
    RoundCheckpoint,
    RoundProgress,
    RunRecorder,
    StopAtTarget,
    TensorBoardMetrics,
    WandbMetrics,
)
from fl_lightning.cli.main import main
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.runs.records import read_rounds

DEFAULTS = (ComputationTime, RunRecorder, RoundProgress, WandbMetrics, TensorBoardMetrics, RoundCheckpoint)


def built(tmp_path, *callbacks):
    given = [{"class_path": f"fl_lightning.callbacks.{name}", "init_args": values} for name, values in callbacks]
    config = tmp_path / "mine.yaml"
    config.write_text(yaml.safe_dump({"loop": {"callbacks": given}, "logger": ["wandb", "tensorboard"]}))
    settings = building.parse(
        configs.compose(["digits_fedacs.yaml", str(config)]), ["--run_dir", str(tmp_path / "run")]
    )
    return building.build(settings, "digits_fedacs").loop.callbacks[3:]  # after schedule, sampling and channel


def test_a_run_has_one_of_each_and_the_checkpoint_last(tmp_path):
    assert [type(callback) for callback in built(tmp_path)] == list(DEFAULTS)


@pytest.mark.parametrize(
    ("name", "values", "attribute"),
    [
        ("ComputationTime", {"seconds_per_step": 3.0}, "seconds_per_step"),
        ("RoundProgress", {"monitor": "test_loss"}, "monitor"),
        ("WandbMetrics", {"project": "mine"}, "project"),
    ],
)
def test_a_callback_of_the_config_takes_the_place_of_the_default(tmp_path, name, values, attribute):
    callbacks = built(tmp_path, (name, values), ("StopAtTarget", {"target": 0.9}))
    assert {type(each) for each in callbacks} == {*DEFAULTS, StopAtTarget}
    assert len(callbacks) == len(DEFAULTS) + 1
    assert isinstance(callbacks[-1], RoundCheckpoint)
    (mine,) = (each for each in callbacks if type(each).__name__ == name)
    assert getattr(mine, attribute) == values[attribute]


@pytest.mark.parametrize("name", ["WandbMetrics", "TensorBoardMetrics"])
def test_a_logger_of_the_config_writes_into_the_runs_folder_alone(tmp_path, name):
    inside = str(tmp_path / "run" / "log")
    (mine,) = (each for each in built(tmp_path, (name, {"save_dir": inside})) if type(each).__name__ == name)
    assert mine.save_dir == inside
    (tmp_path / "link").symlink_to(tmp_path)
    for outside in (str(tmp_path), str(tmp_path / "run" / ".." / "other"), str(tmp_path / "link"), "~/.config"):
        with pytest.raises(configs.ConfigError, match="folder in there"):
            built(tmp_path, (name, {"save_dir": outside}))


def test_wandb_without_a_folder_gets_that_of_the_run(tmp_path):
    (mine,) = (each for each in built(tmp_path, ("WandbMetrics", {})) if isinstance(each, WandbMetrics))
    assert mine.save_dir == str(tmp_path / "run")


def test_a_recorder_of_the_config_gets_what_it_leaves_open(tmp_path):
    callbacks = built(tmp_path, ("RunRecorder", {"run_dir": str(tmp_path / "run"), "labels": {"data": "mine"}}))
    (recorder,) = (each for each in callbacks if isinstance(each, RunRecorder))
    assert recorder.labels == {"data": "mine", "algorithm": "fedacs", "config": "digits_fedacs"}
    assert recorder.target_accuracy == 0.7


def test_files_in_another_place_than_the_other_commands_look_are_refused(tmp_path):
    with pytest.raises(configs.ConfigError, match=r"RunRecorder for elsewhere, .* use --run_dir elsewhere"):
        built(tmp_path, ("RunRecorder", {"run_dir": "elsewhere"}))
    with pytest.raises(configs.ConfigError, match="set it by the key checkpoint"):
        built(tmp_path, ("RoundCheckpoint", {"folder": "elsewhere"}))


def test_a_config_with_callbacks_of_its_own_runs(tmp_path):
    config = tmp_path / "mine.yaml"
    slow = {"class_path": "fl_lightning.callbacks.ComputationTime", "init_args": {"seconds_per_step": 2.0}}
    config.write_text(yaml.safe_dump({"loop": {"callbacks": [slow]}}))
    run = tmp_path / "run"
    arguments = ["--config", "toy_fedacs.yaml", "--config", str(config), "--loop.rounds", "2", "--logger", "none"]
    assert main(["train", *arguments, "--run_dir", str(run)]) == 0
    last = read_rounds(run / "metrics.csv")[-1]
    assert last["computation_time"] == 2 * last["local_steps"]
