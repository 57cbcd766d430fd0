"""What is in a run's folder is never lost: not to a second process, a wrong path, a missing disk or a failed start."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fl_lightning.cli.main import main
from fl_lightning.jobs import worker
from fl_lightning.jobs.jobs import Job
from fl_lightning.runs.folder import RunFolder
from fl_lightning.runs.locking import FolderInUseError, FolderLock
from fl_lightning.runs.storage import checkpoints
from stored_runs import arguments, content_of, make_run

ROUNDS = 3
NAME = "toy_fedavg"


class Killed(BaseException):
    """Like a SIGKILL, nobody catches it."""


class Kill:
    def on_round_end(self, loop, result):
        if loop.round_index == 2:
            raise Killed


def train(run_dir, *more, rounds=ROUNDS):
    return main(["train", *arguments(NAME, run_dir, rounds, *more)])


def everything(folder):
    """Return the bytes of all files below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished run, and one that was killed after its second round."""
    root = tmp_path_factory.mktemp("stored")
    assert train(root / "finished") == 0
    run = make_run(NAME, root / "killed", ROUNDS)
    run.loop.callbacks.append(Kill())
    with pytest.raises(Killed):
        run.execute("auto")
    return root


@pytest.fixture
def finished(stored, tmp_path):
    return Path(shutil.copytree(stored / "finished", tmp_path / "run"))


@pytest.fixture
def killed(stored, tmp_path):
    return Path(shutil.copytree(stored / "killed", tmp_path / "run"))


def test_a_second_process_is_kept_out_and_shown_by_whom(killed, capsys):
    before = everything(killed)
    with FolderLock(killed):
        assert train(killed) == 2
    error = capsys.readouterr().err
    assert f"in use by a run of process {os.getpid()} on" in error
    assert "since 20" in error
    assert everything(killed) == before
    assert train(killed) == 0  # the lock is free again
    assert not list(killed.glob("*.lock"))


def test_the_system_releases_the_lock_of_a_killed_process(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; from fl_lightning.runs.locking import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); lock.acquire()\n"
        "parent = os.getpid()\n"
        "if not os.fork(): print(parent, flush=True); time.sleep(60)\n"  # as a data loader does
        "time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        number = holder.stdout.readline().strip()
        with pytest.raises(FolderInUseError, match=f"process {number} on"):
            FolderLock(tmp_path).acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with FolderLock(tmp_path):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.csv", "epoch,step,train_loss\n0,9,0.5\n"),  # as Lightning's CSVLogger writes it
        ("model.ckpt", "weights"),
        ("summary.json", '{"paper": 1}'),
        ("config.yaml", "model: !mine {a: 1}\n"),
        ("config.yaml", "trainer: {}\nmodel: {}\ndata: {}\n"),
        ("checkpoints/epoch=0-step=9.ckpt", "weights"),
        ("wandb/offline-run-1/run.wandb", "log"),
    ],
)
@pytest.mark.parametrize("resume", ["auto", "never"])
def test_files_of_others_are_not_overwritten(name, text, resume, tmp_path, capsys):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    before = everything(tmp_path)
    assert train(tmp_path, "--resume", resume) == 2
    assert "not from a run of fl_lightning" in capsys.readouterr().err
    assert everything(tmp_path) == before


def test_a_folder_with_nothing_in_the_way_is_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    assert train(tmp_path) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failed_start_leaves_no_folder(tmp_path):
    assert train(tmp_path / "a" / "b", "--loop.weights=[1, 2]") == 2
    assert list((tmp_path).iterdir()) == [tmp_path / "a"] or not list(tmp_path.iterdir())


def test_a_copy_of_a_checkpoint_does_not_write_around_itself(killed, tmp_path, capsys):
    (_, newest) = checkpoints(killed / "checkpoints")[-1]
    home = tmp_path / "home"
    for folder in (home / "backup", home / "checkpoints"):
        folder.mkdir(parents=True)
        shutil.copy(newest, folder / "round_00000002.ckpt")
    (home / "config.yaml").write_text("mine: 1\n")
    before = everything(home)
    more = [argument for argument in arguments(NAME, killed, ROUNDS) if "run_dir" not in argument]
    for folder in ("backup", "checkpoints"):
        copy = home / folder / "round_00000002.ckpt"
        assert main(["train", *more, "--resume", str(copy)]) == 2
        assert "--run_dir" in capsys.readouterr().err
        assert everything(home) == before
    empty = tmp_path / "empty"
    assert main(["train", *more, "--resume", str(copy), "--run_dir", str(empty)]) == 2
    assert "does not have the rounds 1 to 2" in capsys.readouterr().err
    assert not empty.exists()
    assert main(["train", *more, "--resume", str(copy), "--run_dir", str(killed)]) == 0


def test_a_finished_run_without_checkpoints_stays_finished(finished, capsys):
    shutil.rmtree(finished / "checkpoints")
    before = everything(finished)
    assert train(finished) == 0
    error = capsys.readouterr().err
    assert "already finished" in error
    assert "cannot be prolonged" in error
    assert everything(finished) == before


@pytest.mark.parametrize("away", ["empty", "dangling", "deleted"])
def test_rounds_without_their_checkpoints_are_not_started_over(away, killed, stored, tmp_path, capsys):
    folder, disk = killed / "checkpoints", tmp_path / "disk"
    folder.rename(disk)
    if away == "empty":
        folder.mkdir()
    elif away == "dangling":
        folder.symlink_to(tmp_path / "nowhere")
    before = everything(killed)
    assert train(killed) == 2
    error = capsys.readouterr().err
    assert str(folder) in error
    assert "bring" in error
    assert everything(killed) == before
    folder.unlink() if away == "dangling" else shutil.rmtree(folder, ignore_errors=True)
    folder.symlink_to(disk)
    assert train(killed) == 0
    assert content_of(killed) == content_of(stored / "finished")


def test_rounds_that_never_had_a_checkpoint_are_made_again(stored, tmp_path):
    run = make_run(NAME, tmp_path, ROUNDS, "--checkpoint.every_n_rounds=9")
    run.loop.callbacks.append(Kill())
    with pytest.raises(Killed):
        run.execute("auto")
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3
    assert train(tmp_path) == 0
    assert content_of(tmp_path) == content_of(stored / "finished")


@pytest.mark.parametrize("setting", ["--loop.weights=[1, 2]", "--loop.solver.proximal=1e9"])
def test_a_start_that_fails_leaves_the_earlier_run_as_it_was(setting, finished, capsys):
    (finished / "wandb").mkdir()
    (finished / "wandb" / "offline.wandb").write_text("not synced")
    before = everything(finished)
    assert train(finished, setting, "--resume", "never") == 2
    assert everything(finished) == before
    assert train(finished) == 0
    assert "already finished" in capsys.readouterr().err


def test_what_replaces_a_run_deletes_it_with_its_first_checkpoint(finished):
    class Watch:
        def on_federation_start(self, loop):
            self.aside = everything(finished / ".replaced")

        def on_round_end(self, loop, result):
            self.left = (finished / ".replaced").exists()

    run = make_run(NAME, finished, ROUNDS + 1)
    run.loop.callbacks.append(Watch())
    run.execute("never")
    watch = run.loop.callbacks[-2]
    assert {"summary.json", "metrics.csv", "model.ckpt"} <= set(watch.aside)
    assert not watch.left
    assert sorted(path.name for path in finished.iterdir() if path.name.startswith(".")) == [".fl_lightning.json"]
    assert len(checkpoints(finished / "checkpoints")) == 2


@pytest.mark.parametrize("moment", ["moving", "moved"])
def test_a_killed_replacement_is_undone(moment, finished, monkeypatch):
    before = everything(finished)
    folder = RunFolder(finished)
    folder.claim()
    if moment == "moving":
        monkeypatch.setattr(RunFolder, "_move_back", lambda self: None)
        monkeypatch.setattr("fl_lightning.runs.folder.checkpoints", lambda folder: [(0, folder / "nowhere")])
        with pytest.raises(OSError, match="aside"):
            folder.prepare("a: 1", {"config_hash": ""}, anew=True)
        monkeypatch.undo()
    else:
        folder.prepare("a: 1", {"config_hash": ""}, anew=True)
        assert (finished / "config.yaml").read_text() == "a: 1"
    folder._lock.release()  # as the system does
    assert everything(finished) != before
    assert train(finished) == 0
    assert everything(finished) == before


def test_compare_keeps_the_logs_of_a_run_that_it_does_not_replace(killed, tmp_path):
    shutil.rmtree(killed / "checkpoints")
    (killed / "wandb").mkdir()
    (killed / "wandb" / "offline.wandb").write_text("not synced")
    before = everything(killed)
    overrides = ["--logger=none", "--loop.lr=0.7"]
    job = Job(
        algorithm="fedavg", data="toy", seed=0, configs=["toy_fedavg.yaml"], run_dir=str(killed), overrides=overrides
    )
    with (tmp_path / "answers").open("w") as answers, pytest.raises(ValueError, match=r"loop\.lr"):
        worker.execute(job, answers)
    assert everything(killed) == before


@pytest.mark.parametrize("text", [None, "", "[]", '{"rounds": 3', '{"rounds": "3", "seed": 0}'])
def test_a_lost_or_damaged_summary_is_made_again(text, finished, capsys):
    expected = json.loads((finished / "summary.json").read_text())
    if text is None:
        (finished / "summary.json").unlink()
    else:
        (finished / "summary.json").write_text(text)
    assert train(finished) == 0
    assert "summary.json made again" in capsys.readouterr().err
    found = json.loads((finished / "summary.json").read_text())
    assert found.pop("seconds") == pytest.approx(expected.pop("seconds"), abs=1)
    assert found == expected


def test_other_lost_files_are_made_again_or_named(finished, capsys):
    expected = content_of(finished)
    for name in ("model.ckpt", "clients.csv"):
        (finished / name).unlink()
    assert train(finished) == 0
    assert content_of(finished) == expected
    for name in ("model.ckpt", "clients.csv"):
        (finished / name).unlink()
    shutil.rmtree(finished / "checkpoints")
    capsys.readouterr()
    assert train(finished) == 0
    assert "cannot be made again: clients.csv, model.ckpt, its checkpoints" in capsys.readouterr().err


def test_a_finished_run_that_cannot_be_written_is_still_finished(finished, monkeypatch, capsys):
    def refuse(lock):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FolderLock, "acquire", refuse)
    assert train(finished) == 0
    assert "already finished" in capsys.readouterr().err
    assert train(finished, "--resume", "never") == 2
    assert "Permission denied" in capsys.readouterr().err
