"""A comparison is read once, for its report and for the table at its end."""

import pytest

from fl_lightning.cli.main import main
from fl_lightning.jobs.pool import Event
from fl_lightning.report.outcome import load
from fl_lightning.runs import reading
from made_runs import make_comparison


class KeptPool:
    """Finds all runs finished."""

    def __init__(self, *_):
        pass

    def run(self, jobs):
        for job in jobs:
            yield Event(job=job, kind="started")
            yield Event(job=job, kind="kept")


@pytest.mark.parametrize("more", [[], ["--no-report"]])
def test_compare_reads_each_run_once(more, tmp_path, monkeypatch, capsys):
    make_comparison(tmp_path, 2, 2)
    read = []
    load_one = reading.load
    monkeypatch.setattr(reading, "load", lambda folder: read.append(folder) or load_one(folder))
    monkeypatch.setattr("fl_lightning.jobs.pool.Pool", KeptPool)
    command = ["compare", "--algorithms", "fedacs,fedavg", "--seeds", "0:2", "--out", str(tmp_path)]
    assert main([*command, *more]) == 0
    assert len(read) == len(set(read)) == 4
    out = capsys.readouterr().out
    assert "mean ± standard deviation over seeds" in out
    assert (tmp_path / "report" / "index.html").is_file() == (not more)


def test_what_is_left_out_is_shown_even_where_nothing_is_left(tmp_path):
    make_comparison(tmp_path, 1, 1)
    (tmp_path / "fedacs" / "seed_0" / "summary.json").unlink()
    shown = []
    with pytest.raises(ValueError, match="no finished run"):
        load([tmp_path], shown.append)
    assert "left out: the run is unfinished" in shown[0]


def test_another_reference_is_shown(tmp_path):
    make_comparison(tmp_path, 2, 1)
    shown = []
    outcome = load([tmp_path], shown.append, reference="mine")
    assert shown == [f"no run of mine: the others are compared with {outcome.comparison.reference.name}"]
    assert not outcome.logged
