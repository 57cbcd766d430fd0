"""Trace files are read as they are meant, or refused."""

import json

import pytest

from fl_lightning.callbacks.channels.trace import read_deliveries
from fl_lightning.callbacks.schedule import read_trace

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
    ((num_steps, _),) = read_trace(trace)
    assert num_steps.tolist() == [2, 3]
    assert read_deliveries(deliveries).tolist() == [[True, False]]


@pytest.mark.parametrize("value", [2.9, True, 1e400, float("nan"), 10**30, 10**400, "2.9", None])
@pytest.mark.parametrize("name", ["num_steps", "client", "round"])
def test_what_would_have_to_be_cut_is_refused(value, name, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"client": 0, "num_steps": 2, "failure_rate": 0.1, "round": 1} | {name: value}]))
    if (name, value) == ("round", None):
        assert len(read_trace(path)) == 1  # left open
        return
    with pytest.raises(ValueError, match=r"trace\.json"):
        read_trace(path)


@pytest.mark.parametrize("text", ["30000000,0,1", "1,30000000,1", "0,0,1", "-1,-1,1", "1,0,1\n1,0,1"])
def test_one_row_far_away_is_refused_at_once(text, tmp_path):
    path = tmp_path / "deliveries.csv"
    path.write_text(f"round,client,arrived\n{text}\n")
    with pytest.raises(ValueError, match="each client"):
        read_deliveries(path)


def test_an_oversized_cell_is_refused(tmp_path):
    for reader in (read_trace, read_deliveries):
        path = tmp_path / "trace.csv"
        path.write_text("client,num_steps,failure_rate\n0,1," + "1" * 200_000 + "\n")
        with pytest.raises(ValueError, match=r"trace\.csv"):
            reader(path)
