"""HeterogeneitySchedule: what it draws, reads and refuses."""

import json

import numpy as np
import pytest

from fl_lightning.callbacks import Group, HeterogeneitySchedule, Ramp
from systems import PAPER_GROUPS

EPOCH = np.full(20, 3)


def test_groups_draw_integers_and_rates_within_their_ranges():
    schedule = HeterogeneitySchedule(groups=PAPER_GROUPS)
    drawn = [schedule.configure_conditions(r, EPOCH, 0) for r in range(1, 400)]
    steps, rates = np.array([c.num_steps for c in drawn]), np.array([c.failure_rates for c in drawn])
    assert set(np.unique(steps[:, :10])) == set(range(1, 11))  # both ends included
    assert set(np.unique(steps[:, 10:])) == set(range(20, 31))
    assert 0.4 <= rates[:, :10].min() <= rates[:, :10].max() <= 0.5
    assert 0.0 <= rates[:, 10:].min() <= rates[:, 10:].max() <= 0.1
    assert (steps * np.log2(1 - rates + 1) > 0).all()


def test_a_static_schedule_stays_and_a_dynamic_one_changes():
    static = HeterogeneitySchedule(groups=PAPER_GROUPS, dynamic=False)
    dynamic = HeterogeneitySchedule(groups=PAPER_GROUPS)
    first, second = (static.configure_conditions(r, EPOCH, 0).num_steps for r in (1, 2))
    np.testing.assert_array_equal(first, second)
    first, second = (dynamic.configure_conditions(r, EPOCH, 0).num_steps for r in (1, 2))
    assert (first != second).any()


def test_fixed_values_ramps_and_epochs():
    ramp = HeterogeneitySchedule(num_steps=Ramp(1, 20), failure_rates=Ramp(0.01, 0.2))
    conditions = ramp.configure_conditions(1, EPOCH, 0)
    np.testing.assert_array_equal(conditions.num_steps, np.arange(1, 21))
    np.testing.assert_allclose(conditions.failure_rates, np.arange(1, 21) / 100)
    epochs = HeterogeneitySchedule(num_steps=2, failure_rates=[0.1] * 20, unit="epochs")
    np.testing.assert_array_equal(epochs.configure_conditions(1, EPOCH, 0).num_steps, 6)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_trace_is_followed_and_starts_again(tmp_path, suffix):
    rows = [
        {"round": r, "client": m, "num_steps": 10 * r + m, "failure_rate": m / 10} for r in (1, 2) for m in (1, 0, 2)
    ]
    path = tmp_path / f"trace{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines))
    schedule = HeterogeneitySchedule(trace=str(path))
    for index, expected in ((1, [10, 11, 12]), (2, [20, 21, 22]), (3, [10, 11, 12])):
        conditions = schedule.configure_conditions(index, np.ones(3), 0)
        np.testing.assert_array_equal(conditions.num_steps, expected)
        np.testing.assert_allclose(conditions.failure_rates, [0, 0.1, 0.2])
    with pytest.raises(ValueError, match="3 clients, but the data has 4"):
        schedule.configure_conditions(1, np.ones(4), 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,num_steps\n0,1\n", "columns"),
        ("client,num_steps,failure_rate\n0,x,0.1\n", "columns"),
        ("client,num_steps,failure_rate\n0,1,nan\n", "must be in"),
        ("client,num_steps,failure_rate\n0,0,0.1\n", "at least 1"),
        ("client,num_steps,failure_rate\n0,1,0.1\n0,1,0.1\n", "once in each round"),
        ("client,num_steps,failure_rate\n1,1,0.1\n", "once in each round"),
        ("", "once in each round"),
    ],
)
def test_bad_traces_are_refused(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        HeterogeneitySchedule(trace=str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one"),
        ({"groups": PAPER_GROUPS, "num_steps": 1, "failure_rates": 0.0}, "exactly one"),
        ({"num_steps": 1}, "go together"),
        ({"groups": [Group(1.0, (0, 3), 0.1)]}, "at least 1"),
        ({"groups": [Group(1.0, (1, 10**18), 0.1)]}, "at most 1,000,000"),
        ({"groups": [Group(1.0, (3, 2), 0.1)]}, "lower to a higher"),
        ({"groups": [Group(1.0, 3, (0.2, 1.0))]}, "must be in"),
        ({"groups": [Group(1.5, 3, 0.2)]}, "share"),
        ({"num_steps": 1, "failure_rates": 0.1, "unit": "days"}, "unit"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HeterogeneitySchedule(**arguments)


def test_shares_must_add_up():
    schedule = HeterogeneitySchedule(groups=[Group(0.5, 1, 0.1), Group(0.4, 1, 0.1)])
    with pytest.raises(ValueError, match=r"add up to 0\.9"):
        schedule.configure_conditions(1, EPOCH, 0)


def test_shares_that_nearly_add_up_leave_nobody_out():
    groups = [Group(0.5, (2, 2), 0.1), Group(0.4999995, (3, 3), 0.2)]
    conditions = HeterogeneitySchedule(groups=groups).configure_conditions(1, np.ones(3_000_000, dtype=np.int64), 0)
    assert set(np.unique(conditions.num_steps)) == {2, 3}
    assert set(np.unique(conditions.failure_rates)) == {0.1, 0.2}


def test_passes_that_never_end_are_refused():
    schedule = HeterogeneitySchedule(num_steps=1000, failure_rates=0.0, unit="epochs")
    with pytest.raises(ValueError, match="at most 1,000,000"):
        schedule.configure_conditions(1, np.full(3, 1001), 0)
