"""A configuration from a stranger runs no code but the constructors of the known packages' classes."""

import os
import sys
from itertools import pairwise

import pytest
import yaml
from jsonargparse import Namespace

from fl_lightning.cli.main import main
from fl_lightning.config import allow_list
from fl_lightning.config import compose as configs
from stored_runs import arguments

QUICK = ["--logger", "none", "--loop.rounds", "1"]


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A package beside the config that shows when it is imported."""
    (tmp_path / "stranger.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
        "from fl_lightning.samplers import Importance\n"
        "class Mine(Importance):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("stranger", None)


def refused(command, capsys):
    assert main(["train", *command]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


@pytest.mark.parametrize(
    "override",
    [
        ["--loop.sampling.sampler", "stranger.Mine"],
        ["--loop.sampling.sampler={class_path: stranger.Mine}"],
        ["--model", "stranger.Mine"],
        ["--loop.callbacks+=stranger.Mine"],
        ["--loop.callbacks=[{class_path: stranger.Mine}]"],
        ["--fabric.strategy={class_path: stranger.Mine}"],
        ["--loop.solver=fl_lightning.solvers.TorchOptimizer", "--loop.solver.optimizer=stranger.Mine"],
    ],
    ids=" ".join,
)
def test_a_strangers_package_is_not_even_imported(override, stranger, capsys):
    refused(["--config", "toy_fedavg.yaml", *QUICK, *override, "--run_dir", str(stranger / "run")], capsys)
    assert not (stranger / "imported").exists()


def test_neither_from_a_file(stranger, capsys):
    config = {"loop": {"sampling": {"init_args": {"sampler": {"class_path": "stranger.Mine"}}}}}
    (stranger / "mine.yaml").write_text(yaml.safe_dump(config))
    error = refused(["--config", "toy_fedavg.yaml", "--config", str(stranger / "mine.yaml"), *QUICK], capsys)
    assert "--trust stranger" in error
    assert not (stranger / "imported").exists()


def test_a_trusted_package_is_taken_and_trust_does_not_last(stranger, capsys):
    command = ["--config", "toy_fedavg.yaml", *QUICK, "--loop.sampling.sampler=stranger.Mine", "--resume=never",
               "--run_dir", str(stranger / "run")]  # fmt: skip
    assert main(["train", *command, "--trust", "stranger"]) == 0
    assert (stranger / "imported").exists()
    capsys.readouterr()
    refused(command, capsys)
    refused([*command, "--trust", "not a package"], capsys)


@pytest.mark.parametrize(
    "path",
    [
        "torch.hub.load", "torch.load", "torch.jit.load", "torch.package.PackageImporter", "torch.serialization.load",
        "torch.distributed.run.main", "torch.multiprocessing.spawn", "torch.utils.cpp_extension.load",
        "fl_lightning.module.FederatedModule.load_from_checkpoint", "fl_lightning.cli.main.main",
        "fl_lightning.runs.storage.os.system", "lightning.pytorch.cli.LightningCLI",
        "os.system", "builtins.exec",
    ],
)  # fmt: skip
def test_loaders_and_starters_of_known_packages_are_refused(path, tmp_path, capsys):
    base = ["--config", "toy_fedavg.yaml", *QUICK, "--run_dir", str(tmp_path / "run")]
    solver = "--loop.solver=fl_lightning.solvers.TorchOptimizer"  # its optimizer may be any callable
    marker = tmp_path / "ran"
    spec = {"class_path": path, "init_args": {"checkpoint_path": str(marker), "weights_only": False}}
    refused([*base, solver, f"--loop.solver.optimizer={path}"], capsys)
    refused([*base, f"--model={yaml.safe_dump(spec, default_flow_style=True).strip()}"], capsys)
    assert not marker.exists()


def test_keys_are_never_written(tmp_path, monkeypatch, capsys):
    secret = "k" * 40
    monkeypatch.setenv("WANDB_API_KEY", secret)
    monkeypatch.setenv("WANDB_MODE", "offline")
    command = [part for part in arguments("toy_fedavg", tmp_path / "run", 2) if part != "--logger=none"]
    assert main(["train", *command]) == 0
    said = capsys.readouterr()
    assert secret not in said.out + said.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("wandb" in str(path) for path in files)
    for path in files:
        assert secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "hidden", [Namespace(class_path="os.system"), [[Namespace(class_path="os.system")]], os.system]
)
def test_nothing_hides_in_lists_of_other_things(hidden):
    settings = Namespace(loop=Namespace(callbacks=[None, hidden]))
    with pytest.raises(configs.ConfigError, match=r"system"):
        allow_list.check_classes(settings)


@pytest.mark.skipif(os.name != "posix", reason="the files of the repository are looked at")
def test_nothing_unpickles():
    for folder in (configs.FOLDER.parent, configs.FOLDER.parent / "callbacks"):
        for path in folder.rglob("*.py"):
            text = path.read_text()
            if path.name != "watch.py":  # whose unpickler knows numpy alone: tests/data/test_watch.py
                assert "import pickle" not in text, path
            assert "weights_only=False" not in text, path


LETTERS = "abcdefghijklmnopqrstuvw"
DOUBLING = "a: &a [1, 1]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise(LETTERS))


@pytest.mark.parametrize("text", ["loop: &a {x: *a}", DOUBLING], ids=["itself", "doubling"])
def test_files_that_unfold_without_end_are_refused(text, tmp_path, capsys):
    (tmp_path / "bomb.yaml").write_text(text)
    assert "values, or refers to itself" in refused(["--config", str(tmp_path / "bomb.yaml")], capsys)
