"""Files of numbers: each kind is read, and what is not one number for each client is refused in one line."""

import json
import time

import numpy as np
import pytest

from fl_lightning.callbacks import HeterogeneitySchedule
from fl_lightning.callbacks.channels.trace import read_deliveries
from fl_lightning.cli.main import main
from fl_lightning.planning import target_weights
from fl_lightning.system.number_files import read_numbers

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


def test_a_trace_with_a_huge_number_is_refused_at_once(tmp_path):
    (tmp_path / "trace.csv").write_text("round,client,arrived\n30000000,0,1\n")
    with pytest.raises(ValueError, match="each client"):
        read_deliveries(tmp_path / "trace.csv")


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
