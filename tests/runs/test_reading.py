import json
import re
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_lightning.report import comparison, page, tables
from fl_lightning.runs import reading as loading
from made_runs import make_comparison, make_run

NONSENSE = [
    "inf",
    "-inf",
    "nan",
    "",
    "-1",
    "1e308",
    "0",
    "x",
    "\n",
    ",",
    "{",
    "null",
    "true",
    "[[",
    '"',
    "\x00",
    "9" * 400,
]


def reasons(problems):
    return {problem.folder.name: problem.reason for problem in problems}


def test_whole_runs_are_read_with_their_labels(tmp_path):
    make_comparison(tmp_path, 2, 2)
    runs, problems = loading.load_all([tmp_path])
    assert problems == []
    assert sorted((run.algorithm, run.seed) for run in runs) == [
        ("fedacs", 0),
        ("fedacs", 1),
        ("fedavg", 0),
        ("fedavg", 1),
    ]
    assert all(len(run.metrics["round"]) == 30 and len(run.clients["weight"]) == 4 for run in runs)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "unfinished (30 rounds"),
        (lambda folder: (folder / "clients.csv").unlink(), "clients.csv is missing"),
        (lambda folder: cut(folder / "metrics.csv"), "half-written"),
        (lambda folder: cut(folder / "summary.json"), "summary.json is half-written"),
        (lambda folder: (folder / "config.yaml").write_text("a: [1"), "config.yaml is half-written"),
        (lambda folder: (folder / "config.yaml").write_text("- 1"), "config.yaml must hold a table"),
        (lambda folder: (folder / "metrics.csv").write_text(""), "metrics.csv has no rows"),
        (lambda folder: (folder / "metrics.csv").write_bytes(b"\xff\xfe\x00"), "utf-8"),
        (lambda folder: (folder / "metrics.csv").write_text("round\nx\n"), "no number"),
        (lambda folder: (folder / "metrics.csv").write_text("round\n" + "1" * 200_000 + "\n"), "field limit"),
        (lambda folder: (folder / "clients.csv").write_text("client\n" + "1" * 200_000 + "\n"), "field limit"),
        (lambda folder: drop_a_round(folder / "metrics.csv"), "each round once"),
        (lambda folder: drop_last_round(folder / "metrics.csv"), "has 30 rounds, metrics.csv has 29"),
        (lambda folder: swap_seed(folder / "summary.json"), "is of seed 9"),
    ],
)
def test_a_spoiled_run_is_named_and_the_rest_is_read(tmp_path, spoil, words):
    make_comparison(tmp_path, 2, 2)
    spoil(tmp_path / "fedavg" / "seed_1")
    runs, problems = loading.load_all([tmp_path])
    assert len(runs) == 3
    assert len(problems) == 1
    assert problems[0].folder == tmp_path / "fedavg" / "seed_1"
    assert words in problems[0].reason
    assert "\n" not in str(problems[0])


def cut(path):
    text = path.read_text()
    path.write_text(text[: len(text) - 17])


def drop_a_round(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[6:]))


def drop_last_round(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def swap_seed(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 9}))


def test_missing_folders_foreign_data_and_copies_are_named(tmp_path):
    make_comparison(tmp_path / "a", 2, 2)
    make_run(tmp_path / "b", "fedacs", 0, data="other")
    shutil.copytree(tmp_path / "a" / "fedacs" / "seed_0", tmp_path / "c" / "copy")
    (tmp_path / "empty").mkdir()
    runs, problems = loading.load_all([tmp_path / name for name in ("a", "b", "c", "empty", "nowhere")])
    found = reasons(problems)
    assert len(runs) == 4
    assert "no such folder" in found["nowhere"]
    assert "holds no run" in found["empty"]
    assert "is not that of the other runs (made)" in found["seed_0"]
    assert "same run as" in found["copy"]


def test_a_run_that_is_being_replaced_is_passed_over(tmp_path):
    make_comparison(tmp_path, 1, 1)
    folder = tmp_path / "fedacs" / "seed_0"
    shutil.copytree(folder, folder / ".replaced")
    runs, problems = loading.load_all([tmp_path])
    assert ([run.folder for run in runs], problems) == ([folder], [])


def test_the_same_folder_given_twice_is_read_once(tmp_path):
    make_comparison(tmp_path, 1, 2)
    runs, problems = loading.load_all([tmp_path, tmp_path / "fedacs"])
    assert (len(runs), problems) == (2, [])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["metrics.csv", "clients.csv", "summary.json", "config.yaml"]),
    places=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(NONSENSE)), min_size=1, max_size=4),
)
def test_whatever_is_in_the_files_the_rest_is_reported(tmp_path_factory, name, places):
    root = make_comparison(tmp_path_factory.mktemp("runs"), 2, 2)
    path = root / "fedavg" / "seed_1" / name
    tokens = re.split(r"([,\n\s]+)", path.read_text())
    for share, word in places:
        tokens[int(share * (len(tokens) - 1))] = word
    path.write_text("".join(tokens))
    runs, problems = loading.load_all([root])
    assert len(runs) + len(problems) == 4
    assert len(runs) >= 3
    assert len(page.page(comparison.compare(runs), problems)) > 10_000
    tables.all_tables(comparison.compare(runs))
