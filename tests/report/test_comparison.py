import csv
import json
import math
import shutil

import numpy as np
import pytest
import yaml
from rich.console import Console

from fl_lightning.cli import report
from fl_lightning.cli.main import main
from fl_lightning.report import comparison, page, tables
from fl_lightning.report.outcome import outcome_table
from fl_lightning.runs import reading as loading
from made_runs import make_comparison, make_run, write_table


@pytest.fixture
def compared(tmp_path):
    return comparison.compare(loading.load_all([make_comparison(tmp_path)])[0])


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_best_first_and_reference_by_name(compared):
    assert [entry.name for entry in compared.entries] == ["scaffold", "fedacs", "fedavg"]
    assert compared.reference.name == "fedacs"


def test_targets_are_the_configured_one_and_one_that_half_of_all_reach(compared):
    assert compared.targets == (0.3, 0.4)


def test_tables_equal_an_independent_computation_from_the_files(tmp_path, compared):
    """Straight from metrics.csv, with nothing of the report's own code."""
    target = 0.4
    spent, final = {}, {}
    for folder in sorted(tmp_path.glob("*/seed_*")):
        key = folder.parent.name, int(folder.name.removeprefix("seed_"))
        rows = rows_of(folder / "metrics.csv")
        final[key] = float(rows[-1]["test_accuracy"])
        spent[key] = next((row for row in rows if float(row["test_accuracy"]) >= target), None)
    for record in tables.target_table(compared, target).records:
        own = [spent[record["algorithm"], seed] for seed in range(3)]
        base = [spent["fedacs", seed] for seed in range(3)]
        reached = [row for row in own if row]
        both = [(a, b) for a, b in zip(own, base, strict=True) if a and b]
        assert (record["reached"], record["seeds"]) == (len(reached), 3)
        for axis in ("round", "local_steps", "computation_time"):
            values = [float(row[axis]) for row in reached]
            mean = sum(values) / len(values) if values else math.nan
            ratio = sum(float(a[axis]) for a, _ in both) / sum(float(b[axis]) for _, b in both) if both else math.nan
            assert record[f"{axis}_to_target"] == pytest.approx(mean, nan_ok=True)
            assert record[f"{axis}_ratio"] == pytest.approx(ratio, nan_ok=True)
    for record in tables.final_table(compared).records:
        values = np.array([final[record["algorithm"], seed] for seed in range(3)])
        base = np.array([final["fedacs", seed] for seed in range(3)])
        assert record["final_test_accuracy"] == pytest.approx(values.mean())
        assert record["standard_deviation"] == pytest.approx(values.std(ddof=1))
        assert record["difference"] == pytest.approx((values - base).mean())
        half = 4.302652729911275 * (values - base).std(ddof=1) / math.sqrt(3)  # t of 2 degrees of freedom, 97.5 %
        assert record["interval_high"] - record["difference"] == pytest.approx(half)


def test_a_loser_is_shown_losing(compared):
    rows = {row[0]: row for row in tables.final_table(compared).rows}
    assert rows["scaffold"][-4].startswith("+")
    assert rows["scaffold"][-2] == "3 / 0"
    assert rows["fedavg"][-4].startswith("−")
    never = {row[0]: row for row in tables.target_table(compared, 0.4).rows}["fedavg"]
    assert never[1:] == ("0/3", "–", "–", "–", "–", "–", "–")


def test_the_last_rounds_and_the_averaged_model_stand_beside_the_last_round(tmp_path):
    folders = list(make_comparison(tmp_path, 2).glob("*/seed_*"))
    for folder in folders:
        header, *rows = (folder / "metrics.csv").read_text().splitlines()
        lines = [f"{header},averaged_accuracy", *(f"{row},{0.5 + 0.01 * place}" for place, row in enumerate(rows))]
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    table = tables.final_table(comparison.compare(loading.load_all([tmp_path])[0]))
    assert table.header[1:5] == ("final test accuracy", "last 6 rounds", "averaged model", "best")
    for record in table.records:
        means = [
            np.mean([float(row["test_accuracy"]) for row in rows_of(folder / "metrics.csv")[-6:]])
            for folder in folders
            if folder.parent.name == record["algorithm"]
        ]
        assert record["last_test_accuracy"] == pytest.approx(np.mean(means))
        assert record["last_standard_deviation"] == pytest.approx(np.std(means, ddof=1))
        assert record["averaged_accuracy"] == pytest.approx(0.79)


def test_costs_are_divided_by_somebody_who_reached_the_target(tmp_path):
    make_run(tmp_path, "fedacs", 0, level=0.3)
    make_run(tmp_path, "fast", 0, level=0.9)
    make_run(tmp_path, "slow", 0, level=0.6)
    compared = comparison.compare(loading.load_all([tmp_path])[0], targets=[0.5])
    assert compared.reference_for(0.2).name == "fedacs"
    assert compared.reference_for(0.5).name == "fast"
    assert compared.reference_for(0.99).name == "fedacs"  # nobody did
    table = tables.target_table(compared, 0.5)
    rows = {row[0]: row for row in table.rows}
    assert table.header[3] == "× fast"
    assert "fedacs never reached it" in table.note
    assert rows["fast"][3] == "1.00×"
    assert float(rows["slow"][3].removesuffix("×")) > 1


def test_csv_markdown_and_latex_have_a_line_for_each_algorithm(compared):
    for table in tables.all_tables(compared):
        assert len(table.to_csv().splitlines()) == 1 + 3
        assert sum(line.startswith("|") for line in table.to_markdown().splitlines()) == 2 + 3
        latex = table.to_latex()
        assert latex.count(r"\\") == 1 + 3
        assert not set("±–×−≥Ω") & set(latex)


def test_latex_escapes_names(tmp_path):
    make_run(tmp_path, "my_own & 100%", 0)
    made = comparison.compare(loading.load_all([tmp_path])[0])
    assert r"my\_own \& 100\%" in tables.final_table(made).to_latex()


def test_one_name_with_two_settings_becomes_two_entries(tmp_path):
    make_comparison(tmp_path / "a", 1, 2)
    make_comparison(tmp_path / "b", 1, 2)
    for path in (tmp_path / "b").rglob("config.yaml"):
        config = yaml.safe_load(path.read_text())
        config["loop"]["lr"] = 0.5
        path.write_text(yaml.safe_dump(config))
    made = comparison.compare(loading.load_all([tmp_path])[0])
    assert sorted(entry.name for entry in made.entries) == ["fedacs lr=0.5", "fedacs lr=null"]
    assert list(made.differences) == ["loop.lr"]


def test_runs_that_met_other_conditions_are_told(tmp_path):
    make_comparison(tmp_path, 2, 2)
    path = tmp_path / "fedavg" / "seed_1" / "clients.csv"
    path.write_text(path.read_text().replace("25.0", "24.0", 1))
    assert comparison.compare(loading.load_all([tmp_path])[0]).unpaired == ["fedavg"]


def test_without_the_reference_another_takes_its_place(tmp_path):
    make_comparison(tmp_path, 3, 1)
    shutil.rmtree(tmp_path / "fedacs")
    assert comparison.compare(loading.load_all([tmp_path])[0]).reference.name == "fedavg"


def test_nothing_to_report_is_an_error():
    with pytest.raises(ValueError, match="no finished run"):
        comparison.compare([])


@pytest.mark.parametrize(("monitor", "mode", "best"), [("test_loss", "min", "scaffold"), ("score", "max", "fedavg")])
def test_runs_are_ranked_by_the_metric_that_they_monitored(tmp_path, monitor, mode, best):
    for folder in make_comparison(tmp_path).glob("*/seed_*"):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"monitor": monitor, "mode": mode}))
        table = (folder / "metrics.csv").read_text().replace("test_loss", monitor)
        (folder / "metrics.csv").write_text(table)
    compared = comparison.compare(loading.load_all([tmp_path])[0])
    assert (compared.metric, compared.maximised) == (monitor, mode == "max")
    assert compared.entries[0].name == best
    assert monitor.replace("_", " ") in page.page(compared)


def test_private_runs_show_epsilon_beside_the_metric(tmp_path):
    root = make_comparison(tmp_path)
    assert "ε" not in page.page(comparison.compare(loading.load_all([root])[0]), ())
    for seed, epsilon in enumerate((1.5, 2.5, 2.0)):
        path = root / "fedacs" / f"seed_{seed}" / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"epsilon": epsilon, "delta": 1e-2}))
    compared = comparison.compare(loading.load_all([root])[0])
    table = tables.final_table(compared)
    place = table.header.index("ε")
    assert table.header[place - 1 : place + 2] == ("best", "ε", "− fedacs")  # what follows are differences
    assert {row[0]: row[place] for row in table.rows} == {"fedacs": "2.50", "fedavg": "–", "scaffold": "–"}
    assert {record["algorithm"]: record["epsilon"] for record in table.records}["fedacs"] == 2.5
    assert ",epsilon\n" in table.to_csv()
    assert r"$\varepsilon$" in table.to_latex()
    assert "<th>ε</th>" in page.page(compared, ())


def monitored(root, monitor, mode, column="test_accuracy", target=None):
    """Make a comparison whose runs call a column of theirs by another name and monitor it."""
    for folder in make_comparison(root).glob("*/seed_*"):
        summary = json.loads((folder / "summary.json").read_text())
        own = {"monitor": monitor, "mode": mode, f"target_{monitor.removeprefix('test_')}": target}
        (folder / "summary.json").write_text(json.dumps(summary | own))
        (folder / "metrics.csv").write_text((folder / "metrics.csv").read_text().replace(column, monitor))
    return root


def test_another_metric_has_targets_and_clients_too(tmp_path, capsys):
    """As the loop's own metric has; which one it is and whether more is better stand in the runs."""
    same = comparison.compare(loading.load_all([make_comparison(tmp_path / "a")])[0])
    other = comparison.compare(loading.load_all([monitored(tmp_path / "b", "test_acc", "max", target=0.4)])[0])
    assert other.targets == same.targets == (0.3, 0.4)
    for target in same.targets:
        assert tables.target_table(other, target).rows == tables.target_table(same, target).rows
    assert tables.target_table(other, 0.4).title == "Cost to reach 0.4 test acc"
    printed = []
    for compared in (same, other):
        Console(width=120).print(outcome_table(compared))
        printed.append([line.split() for line in capsys.readouterr().out.splitlines()[2:]])
    assert printed[0] == printed[1]
    assert "3/3" in printed[1][1]
    for run in other.runs:
        write_table(run.folder / "clients.csv", dict(run.clients) | {"acc": np.array([0.1, 0.4, 0.8, 0.9])})
    text = page.page(comparison.compare(loading.load_all([tmp_path / "b"])[0]))
    assert "Cost to a target" in text
    assert "What clients get" in text
    assert "its own acc at the end" in text
    assert "worst 0.10, mean 0.55" in text


def test_a_target_of_what_is_minimised_is_reached_from_above(tmp_path):
    root = monitored(tmp_path / "runs", "test_loss", "min", "test_loss", target=1.6)
    compared = comparison.compare(loading.load_all([root])[0])
    assert compared.targets == (1.6,)
    table = tables.target_table(compared, 1.6)
    assert {row[0]: row[1] for row in table.rows} == {"scaffold": "3/3", "fedacs": "3/3", "fedavg": "0/3"}
    assert "loss ≤ 1.6" in table.note
    assert "≤" not in table.to_latex()
    for run in compared.runs:
        write_table(run.folder / "clients.csv", dict(run.clients) | {"loss": np.array([0.5, 1.0, 2.0, 2.5])})
    assert "worst 2.50, mean 1.50" in page.page(comparison.compare(loading.load_all([root])[0]))
    assert report.main([str(root), "--targets", "1.5", "--logger", "none"]) == 0
    assert (root / "report" / "tables" / "target_1_5.csv").is_file()


def test_a_limit_on_work_leaves_runs_paired(tmp_path):
    """The system offered both the same T; that one asks for less of it is its own choice."""
    for name in ("fedavg", "limitedfedacs"):
        command = ["train", "--config", f"digits_{name}.yaml", "--loop.rounds", "2", "--logger", "none"]
        assert main([*command, "--run_dir", str(tmp_path / name)]) == 0
    runs = {run.algorithm: run for run in loading.load_all([tmp_path])[0]}
    limited, free = runs["limitedfedacs"].clients, runs["fedavg"].clients
    assert (limited["num_steps"] < free["num_steps"]).any()
    np.testing.assert_array_equal(limited["offered_steps"], free["num_steps"])
    assert "offered_steps" not in free
    assert comparison.compare(list(runs.values())).unpaired == []
    for run in runs.values():  # what was offered is not known of a run of before, and so not compared
        write_table(run.folder / "clients.csv", {k: v for k, v in run.clients.items() if k != "offered_steps"})
    assert comparison.compare(loading.load_all([tmp_path])[0]).unpaired == []
