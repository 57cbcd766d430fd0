"""A resumed run is the run that was interrupted: same settings, files and rows; a changed config has its own folder."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.runs import identity
from fl_lightning.runs.identity import (
    changed_files,
    changed_settings,
    in_words,
    named_files,
    other_versions,
    run_folder,
)
from stored_runs import arguments, make_run

TOY = ["train", "--config", "toy_fedavg.yaml", "--logger", "none"]
NAME = "toy_fedavg"
ROUNDS = 3
TRACE = "client,num_steps,failure_rate\n" + "".join(f"{client},{1 + client % 3},0.1\n" for client in range(30))


class Killed(BaseException):
    """Like a SIGKILL, nobody catches it."""


class Kill:
    def on_round_end(self, loop, result):
        if loop.round_index == 2:
            raise Killed


def settings(root):
    nothing = [f"--loop.schedule.{name}=null" for name in ("num_steps", "failure_rates")]
    return [*nothing, f"--loop.schedule.trace={root / 'trace.csv'}"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored")
    (root / "trace.csv").write_text(TRACE)
    run = make_run(NAME, root / "run", ROUNDS, *settings(root))
    run.loop.callbacks.append(Kill())
    with pytest.raises(Killed):
        run.execute("auto")
    return root


@pytest.fixture
def killed(stored, tmp_path):
    return Path(shutil.copytree(stored / "run", tmp_path / "run"))


def test_a_trace_that_changed_is_noticed(killed, stored, capsys):
    trace = stored / "trace.csv"
    before = trace.read_text()
    command = ["train", *arguments(NAME, killed, ROUNDS, *settings(stored))]
    try:
        trace.write_text(before.replace("0,1,0.1", "0,3,0.1"))
        assert main(command) == 2
        assert f"the contents of {trace} (loop.schedule.trace) changed" in capsys.readouterr().err
    finally:
        trace.write_text(before)
    assert main(command) == 0
    assert "continuing after round 2" in capsys.readouterr().err


def test_another_version_is_named(killed, stored, monkeypatch, capsys):
    versions = identity.installed_versions()
    monkeypatch.setattr("fl_lightning.runs.identity.installed_versions", lambda: versions | {"torch": "9.9"})
    assert main(["train", *arguments(NAME, killed, ROUNDS, *settings(stored))]) == 0
    assert f"torch was {versions['torch']} and is 9.9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "\ufeff" + text, "column 1 is '\\ufeffround', but was 'round'"),
        (lambda text: text.replace("test_loss", "loss", 1), "but was 'test_loss'"),
        (lambda text: text.replace("round,", "note,round,", 1).replace("\n1,", "\nx,1,"), "does not have the rounds"),
        (lambda text: text.replace("\n", ",7\n"), "are not what they were"),
        (lambda text: text.replace("\n1,", "\n1,0.5", 1), "are not what they were"),
        (lambda text: text + "x" * 200_000, None),  # after the checkpoint: cut off, as what a crash left there
        (lambda text: text.replace("\n1,", "\n1," + "9" * 200_000, 1), "not a table of numbers"),
    ],
    ids=["bom", "renamed", "first", "added", "cell", "tail", "oversized"],
)  # fmt: skip
def test_changed_metrics_are_noticed(change, words, killed, stored, capsys):
    file = killed / "metrics.csv"
    file.write_bytes(change(file.read_text(encoding="utf-8")).encode())
    before = file.read_bytes()
    code = main(["train", *arguments(NAME, killed, ROUNDS, *settings(stored))])
    error = capsys.readouterr().err
    if words is None:
        assert code == 0, error
        return
    assert code == 2
    assert words in error
    assert file.read_bytes() == before


def test_every_file_that_settings_name_is_part_of_the_identity(tmp_path):
    for name in ("a.csv", "b.npy"):
        (tmp_path / name).write_text(name)
    callbacks = [{"class_path": "x.Y", "init_args": {"files": [str(tmp_path / "b.npy")]}}]
    found = named_files({"loop": {"trace": str(tmp_path / "a.csv"), "callbacks": callbacks}, "run_dir": str(tmp_path)})
    assert sorted(found) == ["loop.callbacks[0].files[0]", "loop.trace"]
    assert changed_files(found, {}) == [
        f"{tmp_path / 'a.csv'} (loop.trace) is not there any more",
        f"{tmp_path / 'b.npy'} (loop.callbacks[0].files[0]) is not there any more",
    ]
    assert changed_files({}, found) == []  # made by the run itself, after its start
    assert named_files({"a": "x" * 5000, "b": "\0", "c": "trace.csv"}) == {}


@pytest.mark.parametrize("junk", [None, [], {"torch": 3}, "text", {"loop.trace": 1}])
def test_nonsense_in_a_checkpoint_is_passed_over(junk):
    assert changed_files(junk, {}) == []
    assert other_versions(junk) == []


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def folders(here):
    return sorted(path.parent.relative_to(here).as_posix() for path in here.rglob("summary.json"))


def test_another_number_is_another_folder_and_the_same_number_the_same(here, capsys):
    for more in (
        ["--loop.rounds", "2"],
        ["--loop.rounds=3", "--loop.lr", "0.01"],
        ["--loop.lr=1e-2", "--loop.rounds=3"],
    ):
        assert main([*TOY, *more]) == 0
    assert folders(here) == ["runs/toy_fedavg/lr=0.01,rounds=3/seed_0", "runs/toy_fedavg/rounds=2/seed_0"]
    assert "already finished: use --resume never to start over" in capsys.readouterr().err
    assert main([*TOY, "--loop.rounds", "2", "--seed", "4", "--checkpoint.keep", "1"]) == 0
    assert "runs/toy_fedavg/rounds=2/seed_4" in folders(here)


def test_a_file_that_was_changed_has_another_folder(here, capsys):
    for rounds in (2, 3, 2):
        (here / "mine.yaml").write_text(yaml.safe_dump({"loop": {"rounds": rounds}}))
        assert main(["train", "--config", "toy_fedavg.yaml", "--config", "mine.yaml", "--logger", "none"]) == 0
    assert folders(here) == ["runs/toy_fedavg_mine/rounds=3/seed_0", "runs/toy_fedavg_mine/seed_0"]
    stored = json.loads((here / "runs" / "toy_fedavg_mine" / "seed_0" / "summary.json").read_text())
    assert stored["rounds"] == 2


def test_a_class_is_named_without_its_arguments():
    merged = {"loop": {"sampling": {"class_path": "A", "init_args": {"sampler": {"class_path": "x.B"}}}}}
    new = {
        "loop": {
            "sampling": {"class_path": "A", "init_args": {"sampler": {"class_path": "x.C", "init_args": {"y": 1}}}}
        }
    }
    given = [("loop.sampling.sampler", "x.C"), ("logger", "none"), ("seed", "1")]
    assert changed_settings(merged, new, given) == {"loop.sampling.sampler.class_path": "x.C"}
    assert changed_settings(merged, new, [*given, ("loop.sampling.sampler.y", "1")])["loop.sampling.sampler.y"] == 1


def test_names_are_short_safe_and_tell_settings_apart():
    long = {f"loop.schedule.key{number}": [number] * 20 for number in range(5)}
    assert len(in_words(long)) <= 80
    assert in_words(long) != in_words(long | {"loop.schedule.key4": [5] * 20})
    for value in ("../../x", "a b", "a/b", "é\n"):
        folder = run_folder("mine", {"loop.weights": value}, 0)
        assert len(folder.parts) == 4
        assert ".." not in folder.parts
    assert in_words({"loop.weights": "a b"}) != in_words({"loop.weights": "a/b"})
