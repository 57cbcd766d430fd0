"""Files of numbers and traces are read as they are meant, or refused in one line."""

import json
import time

import numpy as np
import pytest

from fl_lightning.callbacks import HeterogeneitySchedule
from fl_lightning.callbacks.schedule import read_conditions
from fl_lightning.cli.main import main
from fl_lightning.planning import target_weights
from fl_lightning.system.pace import read_pace
from fl_lightning.system.traces import read_flags, read_numbers

TRACE = "client,num_steps,failure_rate\n0,2,0.1\n1,3,0.2\n"
DELIVERIES = "round,client,arrived\n1,0,1\n1,1,0\n"


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_byte_order_mark_has_no_meaning(suffix, tmp_path):
    trace, deliveries = tmp_path / f"trace.{suffix}", tmp_path / f"deliveries.{suffix}"
    if suffix == "csv":
        texts = TRACE, DELIVERIES
    else:
        texts = (
            json.dumps([{"client": number, "num_steps": 2.0 + number, "failure_rate": 0} for number in (0, 1)]),
            json.dumps([{"round": 1, "client": 0, "arrived": True}, {"round": 1, "client": 1, "arrived": 0}]),
        )  # fmt: skip
    for path, text in zip((trace, deliveries), texts, strict=True):
        path.write_text(text, encoding="utf-8-sig")
    ((num_steps, _),) = read_conditions(trace)
    assert num_steps.tolist() == [2, 3]
    assert read_flags(deliveries, "arrived").tolist() == [[True, False]]


@pytest.mark.parametrize("value", [2.9, True, 1e400, float("nan"), 10**30, 10**400, "2.9", None])
@pytest.mark.parametrize("name", ["num_steps", "client", "round"])
def test_what_would_have_to_be_cut_is_refused(value, name, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"client": 0, "num_steps": 2, "failure_rate": 0.1, "round": 1} | {name: value}]))
    if (name, value) == ("round", None):
        assert len(read_conditions(path)) == 1  # left open
        return
    with pytest.raises(ValueError, match=r"trace\.json"):
        read_conditions(path)


@pytest.mark.parametrize("text", ["30000000,0,1", "1,30000000,1", "0,0,1", "-1,-1,1", "1,0,1\n1,0,1"])
def test_one_row_far_away_is_refused_at_once(text, tmp_path):
    path = tmp_path / "deliveries.csv"
    path.write_text(f"round,client,arrived\n{text}\n")
    with pytest.raises(ValueError, match="each client"):
        read_flags(path, "arrived")


def test_an_oversized_cell_is_refused(tmp_path):
    for reader in (read_conditions, lambda path: read_flags(path, "arrived")):
        path = tmp_path / "trace.csv"
        path.write_text("client,num_steps,failure_rate\n0,1," + "1" * 200_000 + "\n")
        with pytest.raises(ValueError, match=r"trace\.csv"):
            reader(path)


def test_a_zero_in_a_json_file_is_not_taken_as_left_open(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"round": 0, "client": 0, "seconds_per_step": 1}]))
    with pytest.raises(ValueError, match="without holes"):
        read_pace(path)
    path.write_text(json.dumps([{"client": 0, "seconds_per_step": 1, "upload_rate": 0}]))
    with pytest.raises(ValueError, match="upload_rate=0 of client 0 must be above 0"):
        read_pace(path)


NUMBERS = [1.0, 2.5, 4.0]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeff1\n2.5\n4\n")
    (tmp_path / "a.json").write_text(json.dumps(NUMBERS))
    np.save(tmp_path / "a.npy", NUMBERS)
    return tmp_path


@pytest.mark.parametrize("kind", ["csv", "json", "npy"])
def test_every_kind_is_read(kind, files):
    assert read_numbers(files / f"a.{kind}").tolist() == NUMBERS
    assert target_weights(str(files / f"a.{kind}"), np.ones(3, dtype=np.int64)).tolist() == [n / 7.5 for n in NUMBERS]


@pytest.mark.parametrize("text", ["a\n", "[1]\n", "nan\n"])
def test_what_is_no_number_is_named(text, tmp_path):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.csv must hold"):
        read_numbers(tmp_path / "bad.csv")


def test_pickled_arrays_are_not_read(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"bad\.npy must hold"):
        read_numbers(tmp_path / "bad.npy")


def test_a_schedule_takes_files(files):
    (files / "steps.json").write_text("[1, 2, 3]")
    schedule = HeterogeneitySchedule(num_steps=str(files / "steps.json"), failure_rates=0.1)
    assert schedule.configure_conditions(1, np.ones(3, dtype=np.int64), 0).num_steps.tolist() == [1, 2, 3]


def test_a_long_list_is_refused_at_once_and_its_key_is_named(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(f"loop: {{weights: {[1] * 8000}}}")
    began = time.monotonic()
    assert main(["train", "--config", "toy_fedavg.yaml", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert "loop.weights has 8,000 values" in capsys.readouterr().err
    assert main(["train", "--config", "toy_fedavg.yaml", f"--loop.weights={[1] * 8000}"]) == 2
    assert "come from a file" in capsys.readouterr().err
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (["--checkpoint", "3"], "checkpoint"),
        (["--loop", "null"], "loop"),
        (["--seed", "9" * 30], "seed"),
        (["--loop.batch_size", "9" * 30], "batch_size"),
    ],
)
def test_internal_texts_name_the_key_instead(override, said, capsys):
    assert main(["train", "--config", "toy_fedavg.yaml", *override]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "__dict__" not in error
    assert "C long" not in error
