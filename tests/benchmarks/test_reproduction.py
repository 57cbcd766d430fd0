"""From run folders to stored results, tables and pictures; and the documents hold what the stored results say."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduction import __main__ as program
from benchmarks.reproduction import cost, documents, figure4, measures, runs, tables, verdicts
from benchmarks.reproduction.runs import Run
from fl_lightning.cli.main import main


def made(algorithm: str, seed: int, end: float, steps: int = 10, lr: float = 0.02, start: float = 0.0) -> Run:
    """Return a run of 20 rounds, tested every second one, whose averaged curve rises to its end after 16 rounds."""
    evaluated = np.arange(2.0, 21, 2)
    averaged = np.where(evaluated > 16, end, start + (end - start) * evaluated / 20)
    return Run(
        algorithm=algorithm,
        seed=seed,
        lr=lr,
        batch_size=16,
        rounds=20,
        target=0.5,
        classes=np.array([0.25, 1.0]),
        averaged_classes=np.empty(0),
        evaluated=evaluated,
        steps=steps * evaluated,
        accuracy=averaged - 0.125,
        averaged=averaged,
    )


READING = [
    *(made("fedacs", seed, 0.75 + 0.01 * seed, steps=5) for seed in (0, 1)),
    *(made("fedavg", seed, 0.5 + 0.02 * seed) for seed in (0, 1)),
    *(made("fednova", seed, 0.7 + 0.1 * seed, steps=12) for seed in (0, 1)),
]


def rows(table: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {line[0].strip("`"): line[1:] for line in lines}


def test_a_reading_has_ends_differences_and_costs():
    table = tables.reading_table(READING, [])
    found = rows(table)
    assert list(found) == ["fedacs", "fednova", "fedavg"]
    averaged, raw, equal, difference, rounds, raw_rounds, steps, total, seeds = found["fedacs"]
    assert averaged == "**0.755 ± 0.007**"
    assert raw == "**0.630 ± 0.007**"
    assert equal == "**0.755 ± 0.007**"
    assert difference == "+0.245 ± 0.005"
    assert (rounds, raw_rounds, steps, total, seeds) == ("14", "18", "0.1k", "0.1k", "2")
    assert found["fednova"][0].startswith("**0.750")  # within one standard error of the best, paired by seed
    assert found["fedavg"][2] == "0.255 ± 0.007"  # at 100 of its 200 steps
    assert found["fedavg"][4:6] == ["18", "never"]
    assert list(rows(tables.reading_table(READING, [], ["fedavg"]))) == ["fedavg"]
    short = rows(tables.summary_table(READING, [], ["fedacs", "fedavg"]))
    assert short["fedacs"] == ["**0.755 ± 0.007**", "**0.755 ± 0.007**", "14", "0.1k", "2"]
    assert short["fedavg"][1:3] == ["0.255 ± 0.007", "18"]


def test_fedavg_is_taken_from_another_place_of_calibration(tmp_path):
    runs.write(tmp_path / "x_server.csv", READING)
    runs.write(tmp_path / "x_local.csv", READING[:2])
    store = documents.Store(tmp_path)
    assert store.reference("x_server") == []
    assert rows(documents.generated(["reading", "x_local"], store))["fedacs"][3] == "+0.245 ± 0.005"
    across = rows(documents.generated(["across", "fedacs", "x_server", "x_local", "x_split"], store))
    assert list(across) == ["x_server", "x_local"]
    assert across["x_local"][3] == "+0.245 ± 0.005"
    assert documents.generated(["reading", "y_server"], store) == tables.MISSING
    with pytest.raises(ValueError, match="'generated: picture x' is unknown"):
        documents.generated(["picture", "x"], store)


def test_where_the_recommended_algorithms_stand():
    found = rows(tables.overview_table({"a": READING, "b": READING[:2]}, ["fedacs", "fedacscv"]))
    assert found["a"] == ["`fedacs`", "1 of 3", "+0.005 ± 0.045 (`fednova`)", "1 of 3", "+0.455 ± 0.015 (`fednova`)"]
    assert list(found) == ["a"]


def test_rounds_beside_those_of_the_paper():
    full = [replace(run, evaluated=4 * run.evaluated) for run in READING if run.algorithm == "fedacs"]
    found = rows(verdicts.paper_table("mnist", {"full": full, "a": READING}))
    assert found["fedacs"][:5] == ["68", "72", "1.06", "56", "**reproduced**"]
    assert found["fedacs"][-2:] == ["2", "full"]
    assert found["fedavg"][:5] == ["93", "never", "-", "18", "direction reproduced"]
    assert found["fedavg"][5:8] == ["1.54", "-", "0.385 ± 0.014"]
    assert found["fedavg"][8:] == ["+0.245 ± 0.005", "2", "a"]
    assert found["fednova"][6] == "2.27"  # 12 / 5 steps per round, 18 and 16 rounds instead of 18
    late = replace(READING[0], seed=7, accuracy=np.zeros(10))  # FedACS under a seed that FedNova does not have
    assert rows(verdicts.paper_table("mnist", {"a": [*READING, late]}))["fednova"][6] == "2.27"
    assert found["fedau"][:5] == ["never", "-", "-", "-", "not measured"]
    never = replace(READING[0], algorithm="fedau", accuracy=np.zeros(10))
    found = rows(verdicts.paper_table("mnist", {"a": [*READING, never]}))
    assert found["fedau"][:5] == ["never", "never", "-", "14", "**reproduced**"]
    again = replace(READING[1], algorithm="fedau")
    found = rows(verdicts.paper_table("mnist", {"a": [*READING, never, again]}))
    assert found["fedau"][1:5] == ["18 (1 of 2)", "-", "14", "direction reproduced"]


def test_smoothing_delays_the_first_hit():
    (run,) = [run for run in READING if (run.algorithm, run.seed) == ("fedacs", 0)]
    assert measures.to_target(run, "accuracy", "evaluated") == 18
    assert verdicts.smoothed(run, 4) == 20
    assert verdicts.smoothed(run, 9) == float("inf")
    assert rows(verdicts.explanations_table({"a": READING}, 4)) == {"a": ["18", "never", "-", "20", "never", "-"]}
    other = [replace(run, accuracy=np.ones(10)) for run in READING if run.seed == 1]
    assert rows(verdicts.explanations_table({"a": READING, "b": other}, 4))["b"] == ["2", "2", "1.00", "8", "8", "1.00"]
    alone = {"a": [run for run in READING if run.algorithm == "fedacs"]}
    assert rows(verdicts.explanations_table(alone, 4)) == {"a": ["18", "-", "-", "20", "-", "-"]}


def test_rates_are_chosen_on_another_seed_than_is_shown():
    readings = {
        0.02: [made("fedacs", seed, end) for seed, end in ((5, 0.6), (6, 0.9))],
        0.04: [made("fedacs", seed, end, lr=0.04) for seed, end in ((5, 0.7), (6, 0.5), (7, 0.99))],
    }
    lr, shown = measures.best_rates(readings)["fedacs"]
    assert (lr, [run.seed for run in shown]) == (0.04, [6])
    assert rows(tables.tuned_table(readings))["fedacs"][:2] == ["0.04", "**0.500**"]
    assert measures.best_rates({0.02: readings[0.02][1:], 0.04: readings[0.04][:1]}) == {}


def test_stored_runs_are_read_back(tmp_path):
    uneven = replace(
        READING[0], evaluated=np.arange(1.0, 11) ** 2, averaged=np.full(10, np.nan), precision="bf16-mixed"
    )
    runs.write(tmp_path / "a.csv", [READING[1], uneven])
    for before, after in zip([READING[1], uneven], runs.read(tmp_path / "a.csv"), strict=True):
        for name, value in vars(before).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_allclose(getattr(after, name), value, atol=1e-4, err_msg=name)
            else:
                assert getattr(after, name) == value
    assert runs.read(tmp_path / "b.csv") == []


def test_fresh_runs_replace_stored_ones_and_settings_must_agree():
    renewed = made("fedacs", 0, 0.9)
    merged = runs.merge(READING, [renewed], "a")
    assert merged[0] is renewed
    assert len(merged) == len(READING)
    with pytest.raises(ValueError, match=r"a: runs differ in lr \(\[0.02, 0.04\]\): use a folder for each setting"):
        runs.merge(READING, [made("fedacs", 0, 0.9, lr=0.04)], "a")
    with pytest.raises(ValueError, match="a: runs differ in precision"):
        runs.merge(READING, [replace(renewed, precision="bf16-mixed")], "a")


def clocked(algorithm: str, seed: int, end: float, pace: float) -> Run:
    """Return a run that was ended by a budget of 100 s."""
    run = made(algorithm, seed, end)
    return replace(run, budget=100.0, clock=pace * run.evaluated, rounds=round(20 * pace))


def test_accuracy_at_equal_time(tmp_path):
    slow = [clocked("fedavg", seed, 0.5 + 0.02 * seed, pace=5.0) for seed in (0, 1)]
    fast = [clocked("fedacs", seed, 0.9, pace=10.0) for seed in (0, 1)]
    found = rows(cost.table(runs.merge(slow, fast, "a")))
    # After 10 of its 20 rounds FedACS is half way up, and FedAvg at its end.
    assert measures.at_clock(fast[0], 50.0) == pytest.approx(0.9 * 5 / 20)  # between its evaluations at 40 and 60 s
    assert np.isnan(measures.at_clock(fast[0], 10.0))  # before its first evaluation
    assert np.isnan(measures.at_clock(fast[0], 201.0))
    assert found["fedacs"][1:] == ["0.225 ± 0.000", "0.450 ± 0.000", "-0.060 ± 0.010", "10", "0.1k", "2"]
    assert found["fedavg"][2] == "**0.510 ± 0.014**"
    runs.write(tmp_path / "a_clock.csv", [*slow, *fast])
    for run, again in zip([*slow, *fast], runs.read(tmp_path / "a_clock.csv"), strict=True):
        np.testing.assert_array_equal(again.clock, run.clock)
        assert again.budget == run.budget
    cost.draw([*slow, *fast], tmp_path / "a.svg")
    assert "FedACS" in (tmp_path / "a.svg").read_text()
    with pytest.raises(ValueError, match="needs runs with --budget synchronous_time=SECONDS"):
        cost.table(READING)


def test_figure_4_is_drawn_beside_the_printed_rounds(tmp_path):
    figure4.draw(READING, tmp_path / "paper_mnist_x.svg")
    drawn = (tmp_path / "paper_mnist_x.svg").read_text()
    assert "FedNova" in drawn
    assert "never" in drawn
    with pytest.raises(ValueError, match=r"paper_toy.svg must be named paper_DATA..., with DATA one of mnist, cifar"):
        figure4.draw(READING, tmp_path / "paper_toy.svg")


def test_limited_runs_are_compared_on_the_seeds_that_they_have():
    limited = [replace(run, averaged=run.averaged + 0.1, steps=run.steps / 2) for run in READING if run.seed == 1]
    found = rows(tables.limits_table(READING, limited))
    assert found["fedacs"] == ["0.760", "0.860", "+0.100", "0.1k", "0.1k", "1"]
    assert list(found) == ["fednova", "fedacs", "fedavg"]
    assert tables.limits_table(READING, []) == tables.MISSING


def test_the_first_is_looked_for_on_common_seeds():
    many = {seed: 0.7 + 0.01 * seed for seed in range(10)}
    few = {seed: value + 0.1 + 0.01 * (seed % 2) for seed, value in many.items() if seed < 3}
    assert measures.leaders({"many": many, "few": few}) == {"few"}
    assert measures.leaders({"many": many, "other": dict.fromkeys(range(3), 0.5)}) == {"many"}
    assert measures.leaders({"a": {0: 0.1}, "b": {0: 0.2}}) == {"b"}
    assert measures.leaders({}) == set()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two readings of a few rounds, by the real program; one run is not finished."""
    root = tmp_path_factory.mktemp("runs")
    settings = [
        "--logger",
        "none",
        "--loop.rounds",
        "4",
        "--loop.evaluate_every",
        "2",
        "--data.partition.num_clients",
        "10",
    ]
    for reading, algorithm, place in (
        ("digits_server", "fedacs", "server"),
        ("digits_server", "fedavg", "server"),
        ("digits_local", "fedacs", "local"),
    ):
        folder = root / reading / algorithm / "seed_0"
        arguments = ["--config", f"digits_{algorithm}.yaml", "--run_dir", str(folder), *settings]
        assert main(["train", *arguments, "--loop.calibration.apply", place]) == 0
    demo = root / "demo"
    for algorithm, rounds in (("fedavg", "1"), ("fedacs", "2")):  # as fl-lightning demo leaves them
        arguments = ["--config", f"digits_{algorithm}.yaml", "--logger", "none"]
        folder = str(demo / algorithm / "seed_0")
        assert main(["train", *arguments, "--run_dir", folder, "--loop.rounds", rounds]) == 0
    unfinished = root / "digits_local" / "fedavg" / "seed_0"
    unfinished.mkdir(parents=True)
    (unfinished / "config.yaml").write_text("seed: 0\n")
    return root


def test_collect_and_tables(folders, tmp_path, monkeypatch, capsys):
    for name, value in (
        ("ROOT", tmp_path),
        ("RESULTS", tmp_path / "results"),
        ("IMAGES", tmp_path / "images"),
        ("DOCUMENTS", (tmp_path / "page.md",)),
    ):
        monkeypatch.setattr(program, name, value)
    (tmp_path / "images").mkdir()
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n<!-- generated: reading digits_local -->\n<!-- end -->\n![](images/results_digits_server.svg)\n"
    )
    assert program.main(["collect", "--classes", str(folders)]) == 0
    said = capsys.readouterr().out
    assert "digits_server: 2 runs read, 2 stored" in said
    assert "not finished, left out" in said
    assert f"left out: {folders / 'demo' / 'fedacs' / 'seed_0'}" in said
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["digits_local.csv", "digits_server.csv"]
    (run,) = runs.read(tmp_path / "results" / "digits_local.csv")
    assert (run.rounds, run.evaluated.tolist(), len(run.classes)) == (4, [2, 4], 10)
    assert run.precision == "32-true"
    assert run.averaged_classes.mean() == pytest.approx(run.averaged[-1], abs=0.05)
    assert program.main(["tables", "--check"]) == 1
    assert program.main(["tables"]) == 0
    assert program.main(["tables", "--check"]) == 0
    text = page.read_text()
    assert text.startswith("# A\n<!-- generated: reading digits_local -->\n| algorithm |")
    assert "`fedavg`" in text
    drawn = (tmp_path / "images" / "results_digits_server.svg").read_bytes()
    assert b"<svg" in drawn
    capsys.readouterr()
    assert program.main(["tables"]) == 0
    assert capsys.readouterr().out == "everything was up to date\n"
    assert program.main(["collect", str(tmp_path / "absent")]) == 2
    shutil.copytree(folders / "demo", tmp_path / "digits_mixed")
    assert program.main(["collect", str(tmp_path / "digits_mixed")]) == 2
    assert "runs differ in rounds" in capsys.readouterr().err


def test_the_documents_hold_what_the_stored_results_say(capsys):
    assert program.main(["tables", "--check"]) == 0, capsys.readouterr().out
    shown = {
        f"{kind}_{name}" for path in program.DOCUMENTS for kind, name in documents._PICTURE.findall(path.read_text())
    }
    assert [name for name in shown if not (program.IMAGES / f"{name}.svg").is_file()] == []
    assert Path(program.RESULTS / "README.md").is_file()
