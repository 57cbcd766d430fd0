"""A changed config has a folder of its own; the same one resumes."""

import json
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.runs.identity import changed_settings, in_words, run_folder

TOY = ["train", "--config", "toy_fedavg.yaml", "--logger", "none"]


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
        folder = Path(run_folder("mine", {"loop.weights": value}, 0))
        assert len(folder.parts) == 4
        assert ".." not in folder.parts
    assert in_words({"loop.weights": "a b"}) != in_words({"loop.weights": "a/b"})
