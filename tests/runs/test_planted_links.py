"""A folder that somebody else made, with links in it, moves, empties and writes nothing outside of itself."""

import os
import shutil
from pathlib import Path

import pytest

from fl_lightning.cli.main import main
from fl_lightning.output import half_written, replace_file, write_durably
from fl_lightning.runs.locking import FolderLock
from stored_runs import arguments

NAME = "toy_fedavg"


def train(run_dir, *more):
    return main(["train", *arguments(NAME, run_dir, 2, *more)])


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    assert train(folder) == 0
    return folder


@pytest.fixture
def home(tmp_path):
    """Files of a user, whom no run may touch."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    for name in (".bashrc", ".ssh/id_ed25519", ".ssh/config.yaml", ".ssh/round_00000001.ckpt"):
        (folder / name).write_text("mine")
    return folder


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
@pytest.mark.parametrize(
    "place",
    [".replaced", ".replaced.tmp", "checkpoints/.replaced", "checkpoints", "wandb", "tensorboard", "tensorboard/inner"],
)
def test_linked_folders_move_and_write_nothing_outside(stored, home, tmp_path, place, finished):
    run = Path(shutil.copytree(stored, tmp_path / "run"))
    if not finished:
        for path in (*run.glob("checkpoints/*"), run / "summary.json"):
            path.unlink()
    if place == "checkpoints":
        shutil.rmtree(run / "checkpoints")
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).symlink_to(home / ".ssh", target_is_directory=True)
    before = everything(home)
    for more in ((), ("--loop.lr=0.01",), ("--resume=never", "--logger=tensorboard")):
        train(run, *more)
        assert everything(home) == before


@pytest.mark.parametrize("name", ["config.yaml", ".fl_lightning.json", "metrics.csv", "summary.json", "clients.csv"])
def test_planted_temporary_names_are_not_written_through(home, tmp_path, name):
    run = tmp_path / "run"
    run.mkdir()
    for planted in (f".{name}.tmp", f".{name}.00000000.tmp"):
        (run / planted).symlink_to(home / ".bashrc")
    assert train(run) == 0
    assert (home / ".bashrc").read_text() == "mine"


def test_only_our_own_names_come_back_from_aside(stored, tmp_path, capsys):
    run = Path(shutil.copytree(stored, tmp_path / "run"))
    (run / ".replaced.tmp").mkdir()
    (run / ".replaced.tmp" / "authorized_keys").write_text("theirs")
    assert train(run) == 2
    assert "move it away" in capsys.readouterr().err
    assert not (run / "authorized_keys").exists()


def test_a_durable_file_replaces_a_link_and_guesses_are_in_vain(home, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.symlink_to(home / ".bashrc")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    monkeypatch.setattr("secrets.token_hex", lambda _: "00000000")
    (tmp_path / ".file.00000000.tmp").symlink_to(home / ".bashrc")
    with pytest.raises(OSError, match="cannot write"):
        write_durably(path, b"newer")
    with replace_file(tmp_path / ".file.00000000.tmp") as file:
        file.write("log")
    assert (home / ".bashrc").read_text() == "mine"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_a_lock_empties_no_file_of_another_name(home, tmp_path):
    for link in (os.link, os.symlink):
        folder = tmp_path / link.__name__
        folder.mkdir()
        link(home / ".bashrc", folder / ".fl_lightning.lock")
        with pytest.raises(OSError, match=r"\.fl_lightning\.lock"):
            FolderLock(folder).acquire()
    assert (home / ".bashrc").read_text() == "mine"


def test_a_killed_run_leaves_no_half_written_file(stored, tmp_path):
    run = Path(shutil.copytree(stored, tmp_path / "run"))
    for name in (".config.yaml.0123abcd.tmp", "checkpoints/.round_00000002.ckpt.0123abcd.tmp", ".mine.0123abcd.tmp"):
        (run / name).write_text("half")
    assert train(run) == 0
    assert [path.name for path in run.rglob("*.tmp")] == [".mine.0123abcd.tmp"]
    assert not half_written(run, lambda name: name == "config.yaml")
