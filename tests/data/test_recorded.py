"""Recorded phones become clients: against the definition, and against files that are not what they should be."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import yaml

from fl_lightning.callbacks import HeterogeneitySchedule
from fl_lightning.cli.main import main
from fl_lightning.data import recorded
from fl_lightning.system import Clock, Phones
from fl_lightning.system.traces import read_latencies, read_speeds, read_states

DAY = 86_400
STATES = {
    "a": {"isSuccess": True, "trace_start": 3600.0, "trace_end": 3600.0 + DAY, "ready_time": [[7000.0, 11000.0]]},
    "b": {"isSuccess": False, "trace_start": None, "trace_end": None, "ready_time": []},
    "c": {"isSuccess": True, "trace_start": 0, "trace_end": 2 * DAY, "ready_time": [[5, 5], [0.5 * DAY, 1.25 * DAY]]},
}
SPEEDS = {"x": {"down_u": 800.0, "down_sigma": 0.0, "up_u": 80.0, "up_sigma": 0.0}}
LATENCIES = [{"Phone Model": "=1+1", "ResNet Latency": 50.0}, {"Phone Model": "n", "ResNet Latency": 0.0}, {}]


@pytest.fixture
def files(tmp_path):
    made = {"flash": STATES, "mobiperf": SPEEDS, "latency": LATENCIES}
    for name, content in made.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return {name: tmp_path / f"{name}.json" for name in made}


def test_clients_are_there_when_their_phones_were_ready(files):
    made = recorded.phone_trace(files, 4, seed=0, span=recorded.Span(days=4))
    expected = []
    for phone in (STATES["a"], STATES["c"]):
        length = phone["trace_end"] - phone["trace_start"]
        moments = [phone["trace_start"] + (hour * 3600 - phone["trace_start"]) % length for hour in range(96)]
        expected.append([any(begin <= t < end for begin, end in phone["ready_time"]) for t in moments])
    found = {tuple(column) for column in made.available.T.tolist()}
    assert found == {tuple(each) for each in expected}
    assert sorted(made.available.sum(axis=0).tolist())[::2] == [8, 36]
    assert made.values["seconds_per_step"].tolist() == [0.05] * 4
    assert made.values["download_rate"].tolist() == [100_000.0] * 4
    assert made.values["upload_rate"].tolist() == [10_000.0] * 4
    assert sorted(made.values["failure_rate"].tolist())[-1] == pytest.approx(60 / 4000)


def test_what_is_not_recorded_is_drawn_by_the_seed():
    made = [recorded.phone_trace({}, 300, seed) for seed in (0, 0, 1)]
    assert made[0].as_csv() == made[1].as_csv() != made[2].as_csv()
    assert np.median(made[0].values["seconds_per_step"]) == pytest.approx(0.17, rel=0.15)
    assert np.median(made[0].available.mean(axis=0)) == pytest.approx(0.055, abs=0.02)


def test_one_command_makes_a_file_that_schedule_and_clock_take(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = [word for name, path in files.items() for word in ("--file", f"{name}={path}")]
    assert main(["data", "trace", *files, "--clients", "5", "--out", "p.csv", "--days", "2", *given]) == 0
    assert "p.csv: 5 clients in 48 rounds" in capsys.readouterr().out
    system = yaml.safe_load((tmp_path / "p.yaml").read_text())["loop"]
    clock, schedule = Clock(**system["clock"]["init_args"]), HeterogeneitySchedule(**system["schedule"]["init_args"])
    made = recorded.phone_trace(files, 5, 0, recorded.Span(days=2))
    there = made.available[made.available.any(axis=1)]
    assert np.array_equal([clock.availability(5, t + 1, 0) for t in range(len(there))], there)
    assert clock.availability.rates(5, 0) == pytest.approx(there.mean(axis=0))
    conditions = schedule.configure_conditions(1, np.ones(5, dtype=np.int64), 0)
    assert conditions.failure_rates == pytest.approx(made.values["failure_rate"], rel=1e-5)
    assert main(["data", "trace", "flash", "--clients", "5", "--out", "p.csv"]) == 2
    assert "p.csv exists" in capsys.readouterr().err


def test_synthetic_phones_have_the_statistics_of_recorded_ones_for_any_number():
    for num_clients in (20, 200, 1_311):
        hours = Phones().hours(num_clients, seed=3)
        mean = hours.mean(axis=0)
        assert hours.shape == (24, num_clients)
        assert np.median(mean) == pytest.approx(0.055, abs=0.015)
        assert np.quantile(mean, 0.9) == pytest.approx(0.25, abs=0.06)
        assert np.quantile(mean, 0.1) < 0.006
    by_hour = hours.mean(axis=1)
    assert by_hour.argmax() in range(2, 7)
    assert 1.6 < by_hour.max() / by_hour.min() < 3.0


PHONE = STATES["a"]
BAD_STATES = {
    "not JSON": "{",
    "no records": "[1, 2]",
    "nobody": "{}",
    "nothing usable": json.dumps({"b": STATES["b"]}),
    "too deep": "[" * 100_000,
    "NaN": json.dumps({"a": PHONE | {"trace_end": float("nan")}}),
    "infinite": json.dumps({"a": PHONE | {"trace_end": float("inf")}}),
    "negative": json.dumps({"a": PHONE | {"trace_start": -5}}),
    "overlapping": json.dumps({"a": PHONE | {"ready_time": [[7000, 9000], [8000, 9500]]}}),
    "outside": json.dumps({"a": PHONE | {"ready_time": [[10, 20]]}}),
    "backwards": json.dumps({"a": PHONE | {"ready_time": [[9000, 7000]]}}),
    "three ends": json.dumps({"a": PHONE | {"ready_time": [[7000, 8000, 9000]]}}),
    "a text": json.dumps({"a": PHONE | {"ready_time": "=cmd()"}}),
    "a formula": json.dumps({"a": PHONE | {"trace_start": "=1+1"}}),
    "true": json.dumps({"a": PHONE | {"trace_start": True}}),
    "success as text": json.dumps({"a": PHONE | {"isSuccess": "yes"}}),
    "huge": json.dumps({"a": PHONE | {"trace_end": 10**400}}),
    "no end": json.dumps({"a": {"isSuccess": True, "trace_start": 1}}),
}
BAD_SPEEDS = {
    "zero": {"x": {"down_u": 0, "down_sigma": 1, "up_u": 1, "up_sigma": 1}},
    "negative": {"x": {"down_u": 1, "down_sigma": -1, "up_u": 1, "up_sigma": 1}},
    "a formula": {"x": {"down_u": "=2", "down_sigma": 1, "up_u": 1, "up_sigma": 1}},
    "no up": {"x": {"down_u": 1, "down_sigma": 1}},
}
BAD_LATENCIES = {"none": [{"ResNet Latency": 0}], "NaN": [{"ResNet Latency": float("nan")}], "text": [["x"]]}


@pytest.mark.parametrize("text", BAD_STATES.values(), ids=BAD_STATES)
def test_states_that_cannot_be_are_refused_in_one_line(text, tmp_path, capsys):
    path = tmp_path / "states.json"
    path.write_text(text)
    out = tmp_path / "p.csv"
    assert main(["data", "trace", "flash", "--clients", "3", "--out", str(out), "--file", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fl-lightning: error: trace file {path}")
    assert error.count("\n") == 1
    assert len(error) < 500
    assert not out.exists()


@pytest.mark.parametrize(
    ("read", "content"),
    [
        *((read_speeds, each) for each in BAD_SPEEDS.values()),
        *((read_latencies, each) for each in BAD_LATENCIES.values()),
    ],
    ids=[*BAD_SPEEDS, *BAD_LATENCIES],
)
def test_speeds_and_latencies_that_cannot_be_are_refused(read, content, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"trace file .*file\.json"):
        read(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["flsh", "--clients", "3"], "flsh"),
        (["flash", "--clients", "0"], "clients=0 must be 1 to"),
        (["flash", "--clients", "3", "--days", "0"], "days=0 must be 1 to 366"),
        (["flash", "--clients", "3", "--minutes", "nan"], "minutes=nan"),
        (["flash", "--clients", "3", "--num_steps", "0"], "num_steps=0"),
        (["flash", "--clients", "3", "--file", "missing.json"], "missing.json does not exist"),
        (["flash", "--clients", "3", "--file", "mobiperf=x"], "once for a source that is named"),
        (["synthetic", "--clients", "3", "--out", "p.txt"], "must end in .csv"),
    ],
)
def test_bad_orders_are_refused_in_one_line(arguments, said, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    more = [] if "--out" in arguments else ["--out", "p.csv"]
    more += [] if "--file" in arguments or arguments[0] != "flash" else ["--file", str(files["flash"])]
    assert main(["data", "trace", *arguments, *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_recording_is_taken_from_the_folder_with_its_checksum_alone(tmp_path, monkeypatch):
    wanted = recorded.RECORDINGS["flash"]
    path = tmp_path / wanted.name
    path.write_text(json.dumps(STATES))
    with pytest.raises(ValueError, match="is damaged or not the right file: sha256"):
        recorded.recording("flash", tmp_path)
    own = replace(wanted, digest=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setitem(recorded.RECORDINGS, "flash", own)
    assert len(read_states(recorded.recording("flash", tmp_path))) == 2
    page = tmp_path / "page" / wanted.path
    page.parent.mkdir(parents=True)
    path.rename(page)
    monkeypatch.setattr(recorded, "_PAGE", (tmp_path / "page").as_uri())
    assert recorded.recording("flash", tmp_path).read_text() == page.read_text()
    path.unlink()
    page.unlink()
    with pytest.raises(FileNotFoundError, match=r"Put .*cached_timers.json into .* as flash_user_states.json"):
        recorded.recording("flash", tmp_path)
