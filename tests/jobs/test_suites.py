"""A suite is a list of jobs under a version: what it runs, what it refuses, and what it says of the rest.

``python tests/jobs/test_suites.py [NAME]`` stores the hashes of shipped suites anew; the data must be on disk.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.cli.suite import examples
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs import suites

TINY = {
    "version": "tiny-v1",
    "data": {"digits": 4},
    "systems": ["paper", "uniform"],
    "algorithms": ["fedacs", "fedavg"],
    "without": {},
    "seeds": "0:2",
    "evaluations": 2,
    "frozen": {},
}


def write(folder, **changes):
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return str(path)


@pytest.mark.parametrize("name", configs.names("suites"))
def test_shipped_suites_are_frozen_as_they_are(name):
    suite = suites.read(name)
    found = suites.hashes(suite)
    assert suites.changed(suite, found) == [], "a change is a new version: python tests/jobs/test_suites.py stores it"
    assert set(found) <= set(suite.frozen)
    assert set(suite.data) == {key.partition("/")[2] for key in suite.frozen if key.startswith("examples/")}


def test_jobs_come_seed_by_seed_and_leave_out_what_takes_too_long(tmp_path):
    suite = replace(suites.read(write(tmp_path)), without={"digits": ["fedavg"]})
    jobs = suites.plan(suite, Path("out"), 0.5, [])
    assert [(job.seed, job.system, job.algorithm) for job in jobs] == [
        (seed, system, "fedacs") for seed in (0, 1) for system in ("paper", "uniform")
    ]
    assert jobs[0].num_rounds == 2
    assert jobs[1].run_dir == "out/digits_uniform/fedacs/seed_0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 3}, "rounds is missing or unknown"),
        ({"data": {"digits": 0}}, "rounds numbers from 1"),
        ({"systems": []}, "lists"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        suites.read(write(tmp_path, **changes))


def test_a_changed_hash_is_refused_by_name(tmp_path, capsys):
    frozen = {"systems/paper": "0" * 64}
    command = ["suite", write(tmp_path, frozen=frozen), "--out", str(tmp_path / "runs")]
    assert main(command) == 2
    assert "systems/paper is not as tiny-v1 has it" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "soon"], "--budget 'soon' is not understood"),
        (["--rounds-factor", "0"], "must be above 0"),
        (["--data", "mnist"], "use some of digits"),
        (["--slurm", "--budget", "2h"], "--slurm goes with neither"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys):
    assert main(["suite", write(tmp_path), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_strangers_algorithm_gets_a_row_and_the_rest_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["suite", write(tmp_path), "--systems", "uniform", "--seeds", "0:2", "--out", "runs", "--jobs", "1"]
    assert main([*command, "--budget", "0.01s"]) == 0  # the first run is finished, no other begins
    said = capsys.readouterr().out
    assert "left out: 3 of 4 runs: digits on uniform: seed 0 (1 algorithms)" in said
    assert main(command) == 0
    assert "4 runs: 3 finished, 1 kept from before" in capsys.readouterr().out
    Path("mine.yaml").write_text("loop: {aggregator: {class_path: fl_lightning.aggregators.NormalizedMean}}\n")
    Path("runs/rows.csv").rename("stored.csv")
    assert (
        main([*command[:-4], "--algorithms", "mine.yaml", "--rows", "stored.csv", "--out", "other", "--jobs", "1"]) == 0
    )
    page = Path("other/leaderboard.md").read_text()
    assert "digits on uniform: 2 seeds, 4 rounds" in page
    assert all(f"| `{name}` |" in page for name in ("mine", "fedacs", "fedavg"))
    assert Path("other/digits_uniform/report/index.html").is_file()


def store(name):
    path, suite = configs.FOLDER / "suites" / f"{name}.yaml", suites.read(name)
    found = suites.hashes(suite) | examples(suite)
    kept = path.read_text().partition("frozen:")[0]
    path.write_text(kept + "frozen:\n" + "".join(f"  {key}: {sha}\n" for key, sha in found.items()))


if __name__ == "__main__":
    for each in sys.argv[1:] or configs.names("suites"):
        store(each)
