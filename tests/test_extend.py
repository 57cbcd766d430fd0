"""Every file and every command of docs/extend.md, in a project outside the repository."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "extend.md").read_text()
BLOCKS = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
FILES = {title: text for _, title, text in BLOCKS if title}
COMMANDS = [shlex.split(line) for kind, _, text in BLOCKS if kind == "bash" for line in text.splitlines()]
PARTS = ["sampler", "aggregator", "solver", "channel", "schedule", "dataset", "partition", "callback"]
QUICK = ["--loop.rounds", "4", "--logger", "none", "--run_dir"]
# One process for all commands of ``fl-lightning``, each through its entry point: importing torch takes seconds.
DRIVER = """
import contextlib, io, json, runpy, sys
from fl_lightning.cli.main import main

said = []
for command in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(command)
    said.append((code, out.getvalue(), error.getvalue()))
assert "" not in sys.path and "." not in sys.path
with contextlib.redirect_stdout(io.StringIO()) as out:
    runpy.run_path("from_python.py")
said.append((0, out.getvalue(), ""))
print("said:" + json.dumps(said))
"""


def run(project: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def name_of(command: list[str]) -> str:
    """Return the part that a command shows, or what it does."""
    return next((part for part in PARTS if f"lab.{part}." in " ".join(command)), command[1])


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for title, text in FILES.items():
        (folder / title).parent.mkdir(exist_ok=True)
        (folder / title).write_text(text)
    (folder / "lab" / "__init__.py").touch()
    return folder


@pytest.fixture(scope="module")
def said(project):
    """Run each command of the page and return its exit code and what it said, by the part that it shows."""
    given = [command[1:] for command in COMMANDS if command[0] == "fl-lightning"]
    names = ["dataset" if "wine.yaml" in command else name_of(["", *command]) for command in given]
    ran = [[*c, *QUICK, f"runs/{name}"] if c[0] == "train" else c for c, name in zip(given, names, strict=True)]
    # As for the installed command, the current folder is not on the path; the script is in a folder of its own.
    (project / "elsewhere").mkdir()
    (project / "elsewhere" / "driver.py").write_text(DRIVER)
    answer = run(project, "elsewhere/driver.py", json.dumps(ran)).rpartition("said:")[2]
    return dict(zip([*names, "python"], json.loads(answer), strict=True))


def rows(project: Path, name: str, file: str = "metrics.csv") -> list[dict[str, str]]:
    with (project / "runs" / name / file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_there_is_a_file_of_at_most_25_lines_for_each_part():
    assert [f"lab/{part}.py" for part in PARTS] == [title for title in FILES if title.startswith("lab/")]
    for title, text in FILES.items():
        assert len(text.splitlines()) <= 25, title


def test_each_part_has_a_command_that_names_it():
    named = " ".join(FILES["wine.yaml"].split()) + " ".join(" ".join(command) for command in COMMANDS)
    for part in PARTS:
        assert f"lab.{part}." in named


def test_every_command_succeeds(said):
    assert set(said) == {*PARTS, "diagnose", "python"}
    for name, (code, _, error) in said.items():
        assert code == 0, (name, error)


def test_channel_schedule_and_callback_decide(project, said):
    delivered = [int(row["num_delivered"]) for row in rows(project, "channel")]
    assert delivered[1::2] == [0, 0]
    assert all(delivered[::2])
    assert [float(row["num_steps"]) for row in rows(project, "schedule", "clients.csv")] == [3.5] * 20
    never = [int(row["never_heard"]) for row in rows(project, "callback")]
    assert len(never) < 4
    assert never[-1] <= 12 < never[-2]


def test_sampler_aggregator_and_solver_decide(project, said):
    """The first ten clients fail with a probability of 0.4 to 0.5, the others of 0 to 0.1."""

    def ratio(name, column):
        clients = rows(project, name, "clients.csv")
        relative = [float(row[column]) / float(row["weight"]) for row in clients]
        return sum(relative[:10]) / sum(relative[10:])

    assert ratio("sampler", "expected_draws") == pytest.approx((0.55 / 0.95) ** 2, rel=0.1)
    assert ratio("aggregator", "effective_weight") == pytest.approx(0.55 / 0.95, rel=0.1)
    assert ratio("solver", "effective_weight") == pytest.approx(1)  # FedACS knows A of a solver that it never met
    assert "steps: 3" in (project / "runs" / "solver" / "config.yaml").read_text()


def test_data_set_and_partition_decide(project, said):
    assert len(rows(project, "dataset", "clients.csv")) == 8
    sizes = re.findall(r"^\W*\d+\W+(\d+)\b", said["partition"][1], re.MULTILINE)
    assert [int(size) for size in sizes] == [719, 360, 180, 90, 45, 44]


def test_an_algorithm_from_a_file_is_diagnosed(said):
    assert "│ reachable " in said["diagnose"][1]


def test_it_works_from_python(said):
    assert float(re.search(r"'test_accuracy': ([\d.]+)", said["python"][1])[1]) > 0.5


def test_all_of_them_at_once_in_a_process_of_their_own(project):
    (command,) = (command for command in COMMANDS if command[0] == "python")
    run(project, *command[1:], *QUICK, "runs/ours")
    config = (project / "runs" / "ours" / "config.yaml").read_text()
    for part in PARTS:
        assert f"class_path: lab.{part}." in config
    metrics = rows(project, "ours")
    assert metrics[2]["num_delivered"] == "0"
    assert "never_heard" in metrics[0]
    assert yaml.safe_load(config)["loop"]["channel"]["init_args"] == {"period": 3}
