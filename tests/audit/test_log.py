"""The log of participation: what is written is read, and a hostile file gives one line."""

import json

import numpy as np
import pytest

from fl_lightning.audit import LogWriter, Row, read_log
from fl_lightning.cli.main import main

HEADER = "round,client,asked,arrived,examples,steps\n"
GOOD = HEADER + "1,a,1,1,10,2\n1,b,1,0,,\n2,a,true,true,10,2\n"


def test_what_is_written_is_read(tmp_path):
    writer = LogWriter(tmp_path / "log.csv")
    writer.write([Row(round=3, client="18446744073709551615", asked=2, arrived=1, examples=7, applied=0.25)])
    writer.write([Row(round=5, client="18446744073709551614", asked=1, arrived=0)])
    log = read_log(tmp_path / "log.csv")
    assert log.names == ("18446744073709551615", "18446744073709551614")  # no float has these ids
    assert (log.num_rounds, log.rounds.tolist(), log.asked.tolist(), log.arrived.tolist()) == (
        2,
        [0, 1],
        [2, 1],
        [1, 0],
    )
    assert sorted(log.known) == ["applied", "examples"]
    assert np.array_equal(log.known["applied"], [0.25, np.nan], equal_nan=True)


def test_csv_and_json_lines_are_alike(tmp_path):
    (tmp_path / "log.csv").write_text("note," + GOOD.replace("\n", "\nx,").removesuffix("x,"))  # columns of one's own
    rows = [{"round": 1, "client": "a", "asked": True, "arrived": 1, "examples": 10, "steps": 2.0, "note": "x"}]
    rows += [{"round": 1, "client": "b", "asked": 1, "arrived": 0, "steps": None}]
    rows += [{"round": 2, "client": "a", "asked": 1, "arrived": True, "examples": 10, "steps": 2}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one, other = read_log(tmp_path / "log.csv"), read_log(tmp_path / "log.jsonl")
    assert one.names == other.names
    for name in ("rounds", "clients", "asked", "arrived"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert one.known.keys() == other.known.keys()
    assert np.array_equal(one.known["steps"], other.known["steps"], equal_nan=True)


def test_a_log_is_cut_back_and_a_torn_line_left_out(tmp_path):
    writer = LogWriter(tmp_path / "log.csv")
    writer.write([Row(round=index, client="a", asked=1, arrived=1) for index in (1, 2, 3, 4)])
    with (tmp_path / "log.csv").open("a") as file:
        file.write("1")
    LogWriter(tmp_path / "log.csv", keep=2)
    assert read_log(tmp_path / "log.csv").num_rounds == 2
    LogWriter(tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_text().count("\n") == 1


HOSTILE = {
    "empty": ("", "no column round, client, asked, arrived"),
    "header alone": (HEADER, "no rows"),
    "missing column": ("round,client,asked\n1,a,1\n", "no column arrived"),
    "column twice": ("round,client,asked,arrived,asked\n1,a,1,1,1\n", "asked is there 2 times"),
    "NaN": (HEADER + "1,a,1,1,nan,2\n", "row 1: examples='nan' must be a finite number"),
    "infinite": (HEADER + "1,a,1,1,inf,2\n", "row 1: examples='inf' must be a finite number"),
    "negative": (HEADER + "1,a,1,1,10,2\n2,a,1,1,10,-2\n", "row 2: steps='-2' must be a finite number of at least 0"),
    "half a question": (HEADER + "1,a,0.5,0,10,2\n", "asked='0.5' must be a whole number"),
    "blank count": (HEADER + "1,a,1,,10,2\n", "arrived='' must be a whole number"),
    "text": (HEADER + "1,a,yes,1,10,2\n", "row 1: asked='yes' is not a number"),
    "repeated row": (GOOD + "2,a,1,1,10,2\n", "row 4 is a second one of client a in round 2"),
    "arrived unasked": (HEADER + "1,a,0,1,10,2\n", "more arrived than asked"),
    "nothing arrived": (HEADER + "1,a,1,0,10,2\n", "no upload ever arrived"),
    "formula": (HEADER + "1,=HYPERLINK(0),1,1,10,2\n", "does not begin with ="),
    "terminal": (HEADER + "1,a\x1b[2J,1,1,10,2\n", "must be a printable name"),
    "long name": (HEADER + f"1,{'a' * 65},1,1,10,2\n", "at most 64 characters"),
    "short row": (HEADER + "1,a,1\n", "row 1 has 3 cells"),
    "huge cell": (HEADER + "1," + "a" * 200_000 + ",1,1,1,1\n", "is not a table of text"),
    "no text": ("\x00\xff\xfe", "is not a table of text"),
    "no steps taken": (HEADER + "1,a,1,1,10,0\n", "weight or steps 0"),
    "weights of nobody": ("round,client,asked,arrived,weight\n1,a,1,1,0\n", "weight or steps 0"),
    "weight of some": ("round,client,asked,arrived,weight\n1,a,1,1,\n1,b,1,1,2\n", "weight is blank for some uploads"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_log_gives_one_line(name, tmp_path, capsys):
    content, said = HOSTILE[name]
    (tmp_path / "log.csv").write_text(content, encoding="latin-1")
    assert main(["audit", str(tmp_path / "log.csv")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


@pytest.mark.parametrize("content", ["{", "[1]", '{"round": [1]}', '{"round": 1}', "[" * 100_000])
def test_hostile_json_gives_one_line(content, tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text(content)
    assert main(["audit", str(tmp_path / "log.jsonl")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_brackets_in_names_are_no_markup(tmp_path, capsys):
    rows = "".join(f"{index},[red]a,1,1,10,50\n{index},b,1,1,10,1\n" for index in range(9))
    (tmp_path / "log.csv").write_text(HEADER + rows)
    assert main(["audit", str(tmp_path / "log.csv")]) == 0
    assert "[red]a" in capsys.readouterr().out
