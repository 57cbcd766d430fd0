"""Each file of a run has one reader, which refuses what no run writes."""

import json

import pytest

from fl_lightning.callbacks.recorder import summarise
from fl_lightning.runs.records import Summary, read_rounds, read_summary, sound_summary
from made_runs import make_run

ROWS = [
    {"round": 1, "test_loss": 2.0, "local_steps": 10.0},
    {"round": 2, "test_loss": 1.0, "local_steps": 30.0, "averaged_loss": 0.5},
]


def test_a_summary_is_read_as_it_was_written():
    written = summarise(ROWS, 1.5, "test_loss", "min") | {"seed": 3, "algorithm": "fedacs", "data": "digits"}
    summary = Summary.of(json.loads(json.dumps(written)))
    assert (summary.metric, summary.mode, summary.rounds, summary.seed) == ("loss", "min", 2, 3)
    assert (summary.last, summary.best, summary.averaged) == (1.0, 1.0, 0.5)
    assert (summary.target, summary.rounds_to_target) == (1.5, 2)
    assert (summary.epsilon, summary.seconds, summary.per_class_accuracy) == (None, None, ())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": "30"}, "rounds of the wrong kind"),
        ({"seed": True}, "seed of the wrong kind"),
        ({"seconds": -1}, "no number from 0 up"),
        ({"target_accuracy": 2}, "not between 0 and 1"),
        ({"per_class_accuracy": [0.5, "x"]}, "not between 0 and 1"),
        ({"versions": [1]}, "versions of the wrong kind"),
    ],
    ids=str,
)
def test_a_summary_of_other_kinds_is_refused(change, words, tmp_path):
    folder = make_run(tmp_path, "fedacs", 0)
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=words):
        read_summary(folder)
    assert sound_summary(folder, 0) is None


def test_a_sound_summary_is_of_the_same_seed(tmp_path):
    folder = make_run(tmp_path, "fedacs", 1)
    assert sound_summary(folder, 1).rounds == 30
    assert sound_summary(folder, 0) is None
    assert sound_summary(tmp_path, 1) is None


def test_rows_have_no_empty_cells_and_whole_rounds(tmp_path):
    file = tmp_path / "metrics.csv"
    assert read_rounds(file) == []
    file.write_text("round,test_loss\n")
    assert read_rounds(file) == []
    file.write_text("round,test_loss\n1,\n2,0.5\n")
    assert read_rounds(file) == [{"round": 1}, {"round": 2, "test_loss": 0.5}]
    assert type(read_rounds(file)[0]["round"]) is int
    file.write_text("round,test_loss\n1\n")
    with pytest.raises(ValueError, match=r"metrics\.csv is not a table of numbers .* line 2 has 1 of 2 cells"):
        read_rounds(file)
