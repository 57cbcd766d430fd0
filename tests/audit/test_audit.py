"""What a log shows of the objective: against what is known, with bands that hold."""

import json
import time
from itertools import combinations, product

import numpy as np
import pytest

from fl_lightning.audit import Log, assert_objective, audit, read_log
from fl_lightning.audit.cures import cures
from fl_lightning.audit.words import percent
from fl_lightning.cli.main import main

NUM, DRAWN = 6, 3


def log_of(arrived, asked, **known):
    """Return a log of (rounds, clients) arrays."""
    rounds, clients = (places.ravel() for places in np.indices(asked.shape))
    return Log(
        names=tuple(map(str, range(asked.shape[1]))),
        num_rounds=len(asked),
        rounds=rounds,
        clients=clients,
        asked=asked.ravel().astype(float),
        arrived=arrived.ravel().astype(float),
        known={name: np.broadcast_to(values, asked.shape).ravel().astype(float) for name, values in known.items()},
    )


def truth(weights, lost, steps, aggregation):
    """Return the objective of a mean over what arrives of a uniform draw, all outcomes gone through."""
    amounts = np.zeros(NUM)
    for asked in map(list, combinations(range(NUM), DRAWN)):
        for there in product((False, True), repeat=DRAWN):
            chance = np.prod(np.where(there, 1 - lost[asked], lost[asked]))
            arrived = np.array(asked)[list(there)]
            divisor = max(1.0, weights[arrived].sum()) if aggregation == "ratio" else 1.0
            amounts[arrived] += chance * weights[arrived] * steps[arrived] / divisor
    return amounts / amounts.sum()


def federation(rng, num_rounds):
    examples, lost, steps = rng.integers(20, 400, NUM), rng.uniform(0, 0.6, NUM), rng.uniform(2, 30, NUM)
    asked = np.argsort(rng.random((num_rounds, NUM)), axis=1) < DRAWN
    arrived = asked & (rng.random((num_rounds, NUM)) >= lost)
    taken = steps * rng.uniform(0.5, 1.5, (num_rounds, NUM))
    return log_of(arrived, asked, examples=examples, steps=taken), examples.astype(float), lost, steps


@pytest.mark.parametrize("aggregation", ["ratio", "sum"])
@pytest.mark.parametrize("num_rounds", [15, 100])
def test_the_truth_is_in_the_band_nine_times_in_ten(aggregation, num_rounds):
    rng = np.random.default_rng(num_rounds)
    inside, rates, near = [], [], []
    for _ in range(120):
        log, examples, lost, steps = federation(rng, num_rounds)
        found, right = audit(log, aggregation=aggregation), truth(examples, lost, steps, aggregation)
        inside.append((found.objective.low <= right) & (right <= found.objective.high))
        near.append(found.distance.low <= np.abs(right - found.weights).sum() <= found.distance.high)
        rates.append((found.lost.low <= lost) & (lost <= found.lost.high))
    assert 0.85 <= np.mean(inside) <= 0.95
    assert 0.84 <= np.mean(near) <= 0.97
    assert np.mean(rates) >= 0.88  # Clopper and Pearson promise at least 0.9


def rounds_of(rng, examples, lost, steps, drawn, num_rounds):
    asked = np.argsort(rng.random((num_rounds, len(examples))), axis=1) < drawn
    arrived = asked & (rng.random(asked.shape) >= lost)
    return asked, arrived, steps * rng.uniform(0.5, 1.5, asked.shape)


def drawn_federation(rng, num, kind):
    """Return examples, losses and steps of a made-up federation of some kind."""
    examples = np.ceil(20 * rng.pareto(1.1, num) + 20) if "heavy" in kind else rng.integers(20, 400, num).astype(float)
    lost = np.zeros(num) if "reliable" in kind else rng.uniform(0, 0.6, num)
    return examples, lost, np.ceil(examples / 20) if "epochs" in kind else rng.uniform(2, 30, num)


FEDERATIONS = [
    (6, 3, "steps"),
    (10, 2, "steps"),
    (8, 1, "heavy steps"),
    (20, 5, "heavy epochs"),
    (30, 30, "steps"),
    (50, 10, "reliable epochs"),
]


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["ratio", "sum"])
@pytest.mark.parametrize("num_rounds", [5, 10, 20, 50, 200])
@pytest.mark.parametrize(("num", "drawn", "kind"), FEDERATIONS)
def test_the_distance_is_in_its_band_nine_times_in_ten(num, drawn, kind, num_rounds, aggregation):
    rng = np.random.default_rng([num, num_rounds])
    inside, bias = [], []
    for _ in range(200):
        examples, lost, steps = drawn_federation(rng, num, kind)
        _, arrived, taken = rounds_of(rng, examples, lost, steps, drawn, 20_000)
        parts = examples * arrived
        parts = parts / np.maximum(parts.sum(axis=1, keepdims=True), 1) if aggregation == "ratio" else parts
        right = np.abs(shares((parts * taken).sum(axis=0)) - shares(examples)).sum()
        asked, arrived, taken = rounds_of(rng, examples, lost, steps, drawn, num_rounds)
        if arrived.any():
            found = audit(log_of(arrived, asked, examples=examples, steps=taken), aggregation=aggregation)
            inside.append(found.distance.low <= right <= found.distance.high)
            bias.append((found.distance.value - right, np.abs(found.objective.value - found.weights).sum() - right))
    print(num, drawn, kind, aggregation, num_rounds, np.mean(inside), np.mean(bias, axis=0).round(3))
    assert np.mean(inside) >= 0.85
    assert np.mean(inside) <= 0.985  # where 0 is in the band, it has no end that may miss


def shares(values):
    return values / values.sum()


@pytest.mark.parametrize("examples", [[1, 19, 10, 10], [2, 38, 1, 3]])
def test_who_always_comes_together_is_not_taken_to_be_independent(examples):
    together = np.zeros((60, 4))
    together[::2, :2] = together[1::2, 2:] = 1
    found = audit(log_of(together, together, examples=np.array(examples), steps=3))
    exact = np.abs(found.objective.value - found.weights).sum()
    assert found.distance.low - 0.02 <= exact <= found.distance.high


def test_local_epochs_weighted_by_examples_optimise_the_square():
    n = np.array([1.0, 2.0, 5.0])
    everybody = np.ones((4, 3))
    found = audit(log_of(everybody, everybody, examples=n, steps=3 * n))
    assert found.objective.value == pytest.approx(n**2 / (n**2).sum())
    assert found.objective.high - found.objective.low == pytest.approx(0, abs=1e-9)  # nothing was left to chance
    assert found.distance == pytest.approx([np.abs(n**2 / 30 - n / 8).sum()] * 3)


def test_rounding_puts_nobody_outside_the_band():
    everybody = np.ones((3, 10))
    found = audit(log_of(everybody, everybody, examples=240, steps=8))
    assert not found.outside.any()
    assert percent(found.distance.value / 2) == "0 %"


def test_unknown_steps_are_said_and_not_guessed(tmp_path, capsys):
    n = np.array([1.0, 2.0, 5.0])
    everybody = np.ones((4, 3))
    log = log_of(everybody, everybody, examples=n)
    found = audit(log)
    assert not found.certain
    assert found.distance == pytest.approx([0, 0, 0], abs=1e-12)
    assert found.otherwise.objective.value == pytest.approx(n**2 / 30)
    assert audit(log, epochs=2, batch_size=1).objective.value == pytest.approx(n**2 / 30)
    rows = "".join(f"{r},{c},1,1,{v}\n" for r in range(4) for c, v in enumerate(n))
    path = tmp_path / "log.csv"
    path.write_text("round,client,asked,arrived,examples\n" + rows)
    assert main(["audit", str(path), "--fail-above", "0.5"]) == 2
    assert "hangs on local steps" in capsys.readouterr().err
    assert main(["audit", str(path), "--fail-above", "0.5", "--assume", "equal"]) == 0
    assert main(["audit", str(path), "--fail-above", "0.1", "--assume", "epochs"]) == 3
    assert "the distance 0.417, at least 0.417 in 19 of 20 logs, is above 0.1" in capsys.readouterr().err
    assert main(["audit", str(path)]) == 0
    assert "Nobody told local steps" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="of the objective is in the wrong place"):
        assert_objective(path, at_most=0.1, epochs=1, batch_size=1)
    assert assert_objective(path, at_most=0.1, assume="equal").distance.high < 0.1


def test_steps_of_some_uploads_are_those_of_the_clients_others():
    steps = np.array([[2.0, 4.0], [np.nan, 4.0]])
    found = audit(log_of(np.ones((2, 2)), np.ones((2, 2)), steps=steps))
    assert found.objective.value == pytest.approx([1 / 3, 2 / 3])
    assert "1 uploads came without steps" in found.notes[0]
    silent = np.array([[2.0, np.nan], [2.0, np.nan]])
    assert not audit(log_of(np.ones((2, 2)), np.ones((2, 2)), steps=silent)).certain


def test_cures_give_what_the_theory_says():
    log, *_ = federation(np.random.default_rng(1), 300)
    found = audit(log, aggregation="sum")
    as_it_is, fedacs, limited, both, normalised, aware = cures(found)
    assert as_it_is.distance == pytest.approx(np.abs(found.objective.value - found.weights).sum())
    for cure in (fedacs, limited, both):
        assert cure.distance == pytest.approx(0, abs=1e-9)
    w, q, t = found.weights, found.lost.value, found.steps.value
    assert normalised.effective_weights == pytest.approx(w * (1 - q) / (w @ (1 - q)))
    assert aware.effective_weights == pytest.approx(w * t / (w @ t))
    assert limited.work < fedacs.work


def test_who_was_never_heard_is_in_the_wanted_objective_and_bounded():
    arrived = np.tile([1, 1, 0, 0], (50, 1))
    asked = np.tile([1, 1, 1, 0], (50, 1))
    found = audit(log_of(arrived, asked, steps=5), wanted="equal")
    assert found.objective.value == pytest.approx([0.5, 0.5, 0, 0])
    assert (found.objective.high[2:] > 0.01).all()
    assert (found.objective.high[2:] < 0.1).all()
    assert found.outside[2] == pytest.approx(-0.25)
    assert len(cures(found)) == 6  # nobody divides by their rates


def test_json_names_what_a_program_needs(tmp_path, capsys):
    path = tmp_path / "log.csv"
    rows = "".join(
        f"{r},site-{c},1,{(r + c) % 3 > 0:d},{9 + c},{1 + c},{c},{r % 2}\n" for r in range(9) for c in range(4)
    )
    path.write_text("round,client,asked,arrived,examples,steps,update_norm,staleness\n" + rows)
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    assert main(["audit", str(path), "--json", "--page", str(page), "--picture", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = audit(read_log(path))
    assert [one["client"] for one in found["clients"]] == ["site-0", "site-1", "site-2", "site-3"]
    assert [one["objective"] for one in found["clients"]] == expected.objective.value.tolist()
    assert all(one["low"] <= one["objective"] <= one["high"] for one in found["clients"])
    assert found["clients"][0]["pull"] == 0
    assert 0 < found["clients"][0]["staleness"] < 1
    assert (found["distance"], found["distance_low"], found["distance_high"]) == expected.distance
    assert len(found["cures"]) == 6
    assert "What this federation optimises" in page.read_text()
    assert "<svg" in page.read_text()
    assert picture.read_text().startswith("<?xml")


def test_many_rows_take_seconds(tmp_path):
    """Ten for a million."""
    rng = np.random.default_rng(0)
    path = tmp_path / "log.csv"
    cells = np.stack([np.arange(200_000) // 100, np.tile(np.arange(100), 2_000)])
    lost = rng.random(200_000) < 0.2
    with path.open("w") as file:
        file.write("round,client,asked,arrived,examples,steps\n")
        file.writelines(f"{r},{c},1,{1 - x:d},{c + 1},{c + 3}\n" for r, c, x in zip(*cells, lost, strict=True))
    began = time.process_time()
    assert audit(read_log(path)).num_rounds == 2_000
    assert time.process_time() - began < 2


def test_a_million_clients_are_no_more_than_arrays():
    num = 1_000_000
    clients = np.arange(num)
    ones = np.ones(num)
    log = Log(
        names=tuple(map(str, range(num))),
        num_rounds=100,
        rounds=clients % 100,
        clients=clients,
        asked=ones,
        arrived=ones,
        known={"steps": ones},
    )
    began = time.process_time()
    assert len(audit(log).objective.low) == num
    assert time.process_time() - began < 20
