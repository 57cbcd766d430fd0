from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_lightning.report import leaderboard
from fl_lightning.report.leaderboard import Row


def row(algorithm, seed, value, mode="max", system="paper"):
    return Row(
        data="digits",
        system=system,
        algorithm=algorithm,
        seed=seed,
        rounds=2,
        metric="test_accuracy",
        mode=mode,
        value=value,
        worst=value / 2,
        local_steps=100.0,
        seconds=20.0 if algorithm == "slow" else 10.0,
        uplink_bytes=2e6,
        curve=f"1000 {value * 10_000:.0f}",
        clock="10 20" if algorithm == "slow" else "5 10",
        averaged=value + 0.05,
    )


VALUES = {"fedacs": (0.8, 0.7, 0.9), "slow": (0.85, 0.72, 0.9), "bad": (0.3, 0.3, 0.4)}
ROWS = [row(name, seed, value) for name, values in VALUES.items() for seed, value in enumerate(values)]


def test_rows_are_kept_as_they_are(tmp_path):
    leaderboard.write_rows(tmp_path / "rows.csv", ROWS)
    assert leaderboard.read_rows(tmp_path / "rows.csv") == ROWS
    fresh = row("bad", 0, 0.5)
    assert leaderboard.merged(ROWS, [fresh]).count(fresh) == 1
    assert len(leaderboard.merged(ROWS, [fresh])) == len(ROWS)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other.csv is no table of a leaderboard"):
        leaderboard.read_rows(tmp_path / "other.csv")


def test_intervals_are_paired_and_time_is_equal():
    table = leaderboard.cell_table(ROWS, "fedacs")
    differences = np.subtract(VALUES["slow"], VALUES["fedacs"])
    low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert table.rows[0][0] == "`slow`"
    assert table.rows[0][3].endswith(f"[{low:+.3f}, {high:+.3f}]".replace("-", "−"))
    by_name = {cells[0]: cells for cells in table.rows}
    assert by_name["`slow`"][4] == "0.100"  # after 10 s, when the others are at their end
    assert by_name["`fedacs`"][4] == "0.800"
    assert by_name["`fedacs`"][2] == "0.850"  # the averaged model
    assert by_name["`fedacs`"][1].startswith("**0.800") is False
    assert by_name["`slow`"][1].startswith("**")


def test_the_summary_ranks_and_lower_may_be_better():
    losses = [
        row(name, seed, value, "min", "phones") for name, values in VALUES.items() for seed, value in enumerate(values)
    ]
    table = leaderboard.summary_table([*ROWS, *losses])
    assert {cells[0]: cells[1:] for cells in table.rows} == {
        "`slow`": ("2.0", "1 of 2", "2.0", "1 of 2"),
        "`fedacs`": ("2.0", "0 of 2", "2.0", "0 of 2"),
        "`bad`": ("2.0", "1 of 2", "2.0", "1 of 2"),
    }
    averages = [replace(each, averaged=1.0 if each.algorithm == "bad" else 0.5) for each in ROWS]
    assert {cells[0]: cells[1::2] for cells in leaderboard.summary_table(averages).rows}["`bad`"] == ("3.0", "1.0")
    page = leaderboard.to_html("<v1>", leaderboard.tables([*ROWS, *losses], "fedacs"), {"digits_paper": "a/index.html"})
    assert "&lt;v1&gt;" in page
    assert page.count('<a href="a/index.html">') == 1
