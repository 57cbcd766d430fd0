"""Class paths of the modules that parts used to be in."""

import pkgutil
from pathlib import Path

import pytest
import yaml

from fl_lightning.callbacks.checkpoint import checkpoints
from fl_lightning.checkpointing.storage import read_checkpoint, write_checkpoint
from fl_lightning.cli import moved, resuming
from fl_lightning.cli.main import main
from stored_runs import arguments, content_of

FORMER = {
    "fl_lightning.aggregators": [
        "anonymous.AnonymousMean", "communication.CommunicationAware", "control.ControlVariates",
        "consistent.CommunicationAwareNormalizedMean", "echo.EchoedInnovations", "incomplete.IncompleteWork",
        "intervals.ParticipationIntervals", "last_known.LastKnownUpdates", "memorized.MemorizedMean",
        "normalized.NormalizedMean", "postponed.PostponedBroadcast", "server.ServerOptimizer",
        "server_adam.ServerAdam", "server_momentum.ServerMomentum", "server_yogi.ServerYogi", "stale.StaleMixture",
    ],
    "fl_lightning.callbacks": [
        "channel.ChannelFailures", "channel_bursts.GilbertElliott", "channel_groups.GroupFailures",
        "channel_trace.TraceChannel", "radio.RayleighOutage",
    ],
    "fl_lightning.samplers": [
        "diversity.DiversityBased", "entropy.EntropyClusters", "heterogeneity.HeterogeneityAware",
        "losses.PowerOfChoice", "norms.NormProportional", "submodular.SubmodularSelection",
    ],
}  # fmt: skip
PATHS = [f"{package}.{path}" for package, paths in FORMER.items() for path in paths]
OLD = {
    "fl_lightning.samplers.HeterogeneityAware": "fl_lightning.samplers.heterogeneity.HeterogeneityAware",
    "fl_lightning.callbacks.ChannelFailures": "fl_lightning.callbacks.channel.ChannelFailures",
    "fl_lightning.aggregators.AnonymousMean": "fl_lightning.aggregators.anonymous.AnonymousMean",
}


def aged(text: str) -> str:
    for new, old in OLD.items():
        assert new in text
        text = text.replace(new, old)
    return text


@pytest.mark.parametrize("path", PATHS)
def test_each_former_path_names_the_same_class(path):
    now = moved.current(path)
    assert now != path
    assert pkgutil.resolve_name(now).__name__ == path.rpartition(".")[2]


def test_the_table_has_no_module_that_exists():
    for package, modules in moved._FORMER_MODULES.items():
        folder = Path(pkgutil.resolve_name(package).__file__).parent
        assert {path.split(".")[0] for path in FORMER[package]} == set(modules)
        assert not set(modules) & {path.stem for path in folder.iterdir()}


def test_other_texts_stay():
    for text in ("fl_lightning.samplers.fedacs.X", "runs/heterogeneity", "fl_lightning.callbacks.channels.X"):
        assert moved.current(text) == text
    assert moved.current({"a": [1, None, True, "x"]}) == {"a": [1, None, True, "x"]}


def test_a_stored_run_of_former_names_resumes_and_its_config_runs_again(tmp_path, capsys):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main(["train", *arguments("toy_fedacs", straight, 4)]) == 0
    assert main(["train", *arguments("toy_fedacs", stopped, 2)]) == 0
    config = stopped / "config.yaml"
    config.write_text(aged(config.read_text()))
    for _, path in checkpoints(stopped / "checkpoints"):
        stored = read_checkpoint(path)
        write_checkpoint(path, stored | {"config": aged(stored["config"])})
    capsys.readouterr()
    assert main(["train", *arguments("toy_fedacs", stopped, 4), "--resume", str(stopped)]) == 0
    assert "continuing after round 2 of 4" in capsys.readouterr().err
    assert content_of(stopped)["metrics"] == content_of(straight)["metrics"]
    assert main(["train", "--config", str(config), "--run_dir", str(tmp_path / "again"), "--logger", "none"]) == 0


def test_a_rename_is_no_difference_but_another_class_is():
    new = yaml.safe_dump({"loop": {"aggregator": {"class_path": "fl_lightning.aggregators.AnonymousMean"}}})
    old = new.replace("aggregators.", "aggregators.anonymous.")
    other = new.replace("AnonymousMean", "NormalizedMean")
    assert resuming.differences(old, new) == []
    assert len(resuming.differences(old, other)) == 1


def test_overrides_may_have_former_names(capsys):
    command = ["--config", "toy_fedavg.yaml", "--print_config"]
    assert main(["train", *command, "--loop.aggregator", "fl_lightning.aggregators.normalized.NormalizedMean"]) == 0
    assert "class_path: fl_lightning.aggregators.NormalizedMean" in capsys.readouterr().out
