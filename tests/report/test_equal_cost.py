"""The table at equal cost, against numbers worked out by hand; and clients' accuracy in the page."""

import numpy as np
import pytest

from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs.jobs import parse_budget
from fl_lightning.report.comparison import compare
from fl_lightning.report.page import page
from fl_lightning.report.tables import equal_cost_table
from fl_lightning.runs import reading as loading
from made_runs import make_run, write_table


def with_columns(folder, **columns):
    """Write more columns into the metrics of a made run."""
    run = loading.load(folder)
    write_table(folder / "metrics.csv", dict(run.metrics) | columns)


def made(root, bytes_a, bytes_b):
    rounds = np.arange(1.0, 31.0)
    for name, per_round, level in (("fedacs", bytes_a, 0.6), ("fedavg", bytes_b, 0.9)):
        for seed in (0, 1):
            folder = make_run(root, name, seed, level=level)
            with_columns(folder, uplink_bytes=per_round * rounds, test_accuracy=level * rounds / 30 + 0.01 * seed)
    return compare(loading.load_all([root])[0])


def test_all_are_compared_where_all_have_spent_the_same(tmp_path):
    comparison = made(tmp_path, 100.0, 250.0)
    assert comparison.equal_costs["uplink_bytes"] == 3000  # fedacs has spent no more
    record = {row["algorithm"]: row for row in equal_cost_table(comparison).records}
    # fedavg has spent 3000 bytes after 12 rounds: 0.9 * 12 / 30 and 0.01 more in the other seed
    assert record["fedavg"]["at_equal_uplink_bytes"] == pytest.approx(0.365)
    assert record["fedacs"]["at_equal_uplink_bytes"] == pytest.approx(0.605)
    assert record["fedavg"]["at_equal_uplink_bytes_difference"] == pytest.approx(-0.24)
    assert record["fedavg"]["at_equal_uplink_bytes_low"] == pytest.approx(-0.24)  # both seeds differ by the same


def test_between_two_evaluations_the_line_through_them_counts(tmp_path):
    comparison = made(tmp_path, 100.0, 180.0)
    found = next(e for e in comparison.entries if e.name == "fedavg").at_cost("uplink_bytes", "test_accuracy", 3000)
    assert found[0] == pytest.approx(0.9 * (3000 / 180) / 30)


def test_a_cost_that_not_all_runs_count_is_left_out(tmp_path):
    comparison = made(tmp_path, 100.0, 250.0)
    assert "synchronous_time" not in comparison.equal_costs
    assert "At equal cost" in page(comparison)


def test_clients_accuracy_is_drawn_where_it_was_measured(tmp_path):
    comparison = made(tmp_path, 100.0, 250.0)
    assert "What clients get" not in page(comparison)
    for run in comparison.runs:
        write_table(run.folder / "clients.csv", dict(run.clients) | {"accuracy": np.array([0.1, 0.4, 0.8, 0.9])})
    text = page(compare(loading.load_all([tmp_path])[0]))
    assert "What clients get" in text
    assert "worst 0.10, mean 0.55" in text


def test_a_budget_becomes_settings_of_all_runs():
    assert parse_budget("local_steps=900, uplink_bytes=1e6") == [
        "--loop.budget.local_steps=900",
        "--loop.budget.uplink_bytes=1e6",
    ]
    for text in ("time=5", "local_steps", "local_steps=0", "local_steps=nan", "uplink_bytes=much"):
        with pytest.raises(ConfigError, match="--budget"):
            parse_budget(text)
