"""The benchmark of many clients plays real rounds of each algorithm and draws what it measured."""

import math

import pytest

from benchmarks.scaling import ALGORITHMS, draw, measure


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_case_is_played(algorithm, tmp_path):
    run_dir = tmp_path if algorithm == "mifa" else None
    case = measure(algorithm, 2000, rounds=3, num_inputs=12, num_classes=5, run_dir=run_dir)
    assert (case["clients"], case["weights"], case["mode"]) == (2000, 65, "stacked")
    assert all(0 < case[key] < math.inf for key in ("wall", "cpu", "seconds", "megabytes"))
    assert 0 <= case["accuracy"] <= 1
    if run_dir is not None:
        assert (run_dir / "summary.json").is_file()


def test_a_picture_is_drawn(tmp_path):
    cases = [{"algorithm": "mifa", "clients": number, "cpu": 0.1, "megabytes": 700} for number in (1000, 10_000)]
    draw(tmp_path / "scaling.png", cases)
    assert (tmp_path / "scaling.png").stat().st_size > 1000
