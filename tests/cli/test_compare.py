import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli import compare
from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.jobs import jobs
from fl_lightning.runs.locking import FolderLock

ROOT = Path(__file__).resolve().parents[2]
MEASURED = {"wall_time", "training_seconds"}
ROUNDS = 24
SMALL = ["--data.partition.num_clients", "10", "--loop.batch_size", "8", "--loop.rounds", str(ROUNDS)]
SETTINGS = ["--config", "digits.yaml", "--algorithms", "fedacs,fedavg", "--seeds", "0:2", "--jobs", "2", *SMALL]


def command(out, *more, settings=SETTINGS):
    return [sys.executable, "-m", "fl_lightning", "compare", *settings, "--out", str(out), *more]


def run(out, *more):
    environment = os.environ | {"WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command(out, *more), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def contents(folder):
    """Return everything that is in a run's files, apart from measured times and the folder's own name."""
    with (folder / "metrics.csv").open() as file:
        rows = [{name: cell for name, cell in row.items() if name not in MEASURED} for row in csv.DictReader(file)]
    summary = json.loads((folder / "summary.json").read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    clients, weights = (folder / "clients.csv").read_bytes(), (folder / "model.ckpt").read_bytes()
    free = {"run_dir", "logger", "checkpoint"}
    return {
        "metrics": rows,
        "summary": {key: value for key, value in summary.items() if key != "seconds"},
        "config": {key: value for key, value in config.items() if key not in free},
        "clients": clients,
        "weights": weights,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole comparison with its report, logged offline to W&B and to TensorBoard."""
    out = tmp_path_factory.mktemp("compare") / "project"
    done = run(out, "--logger", "wandb,tensorboard")
    assert done.returncode == 0, done.stderr
    return out, done


def records(folder):
    """Return what the offline W&B run below a folder holds, read by the real library."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    read = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def test_every_run_is_there_and_the_report(finished):
    out, done = finished
    folders = sorted(path.relative_to(out).as_posix() for path in out.glob("*/seed_*") if path.is_dir())
    assert folders == ["fedacs/seed_0", "fedacs/seed_1", "fedavg/seed_0", "fedavg/seed_1"]
    for folder in folders:
        assert {"config.yaml", "metrics.csv", "clients.csv", "summary.json", "model.ckpt"} <= set(
            os.listdir(out / folder)
        )
    assert "4 runs: 4 finished" in done.stdout
    assert done.stderr.count("accuracy") == 4
    assert (out / "report" / "index.html").stat().st_size > 20_000


def test_algorithms_are_paired_by_seed(finished):
    out, _ = finished
    for seed in ("seed_0", "seed_1"):
        tables = []
        for algorithm in ("fedacs", "fedavg"):
            with (out / algorithm / seed / "clients.csv").open() as file:
                tables.append([(row["size"], row["num_steps"], row["failure_rate"]) for row in csv.DictReader(file)])
        assert tables[0] == tables[1]
    assert "every algorithm met the same clients" in (out / "report" / "index.html").read_text()


def test_offline_runs_have_every_round_group_summary_and_axes(finished):
    out, _ = finished
    for algorithm in ("fedacs", "fedavg"):
        found = records(out / algorithm / "seed_1")
        (opened,) = [record["run"] for record in found if record["type"] == "run"]
        assert (opened["project"], opened["run_group"], opened["job_type"]) == ("project", algorithm, "train")
        config = opened["config"]["update"]
        assert (config["algorithm"], config["data"], config["seed"]) == (algorithm, "digits", 1)
        assert config["data_source"]["class_path"].endswith("Digits")
        history = [record["history"]["item"] for record in found if record["type"] == "history"]
        with (out / algorithm / "seed_1" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [item["_step"] for item in history] == list(range(1, ROUNDS + 1))
        assert [item["round"] for item in history] == list(range(1, ROUNDS + 1))
        assert [item["test_accuracy"] for item in history] == pytest.approx(
            [float(row["test_accuracy"]) for row in rows]
        )
        assert [item["local_steps"] for item in history] == [int(row["local_steps"]) for row in rows]
        summary = {}
        for record in found:
            summary |= record.get("summary", {}).get("update", {})
        best = json.loads((out / algorithm / "seed_1" / "summary.json").read_text())["best_accuracy"]
        assert summary["best_accuracy"] == pytest.approx(best)
        assert summary["reached"] is (summary["rounds_to_target"] is not None)
        metrics = [record["metric"] for record in found if record["type"] == "metric"]
        assert {"round", "local_steps", "computation_time", "synchronous_time"} <= {
            metric.get("name") for metric in metrics
        }


def test_report_is_logged_as_an_artifact(finished):
    out, _ = finished
    found = records(out / "report")
    (opened,) = [record["run"] for record in found if record["type"] == "run"]
    assert (opened["project"], opened["run_group"]) == ("project", "report")
    artifacts = [record["artifact"] for record in found if record["type"] == "artifact"]
    (report,) = [artifact for artifact in artifacts if artifact["type"] == "report"]
    files = {entry["path"]: entry["local_path"] for entry in report["manifest"]["contents"]}
    assert {"index.html", "tables/final.csv", "figures/final.png"} <= files.keys()
    assert all(Path(place).is_relative_to(out) for place in files.values())


def test_tensorboard_has_every_round(finished):
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out, _ = finished
    events = loading.EventAccumulator(str(out / "fedavg" / "seed_0" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("test_accuracy")] == list(range(1, ROUNDS + 1))
    with (out / "fedavg" / "seed_0" / "metrics.csv").open() as file:
        steps = [int(row["local_steps"]) for row in csv.DictReader(file)]
    assert [event.step for event in events.Scalars("by_local_steps/test_accuracy")] == steps


def test_killed_and_started_again_it_leaves_the_same_files(finished, tmp_path):
    reference, _ = finished
    out = tmp_path / "killed"
    more = ("--logger", "none", "--no-report", "--checkpoint.min_seconds", "0")
    process = subprocess.Popen(command(out, *more), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = out / "fedacs" / "seed_1" / "metrics.csv"  # by now at least one run is finished
    wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") > 6)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(is_running(worker) for worker in workers), seconds=5)
    interrupted = [path for path in out.glob("*/seed_*") if path.is_dir() and not (path / "summary.json").exists()]
    assert interrupted
    again = run(out, *more)
    assert again.returncode == 0, again.stderr
    assert "kept from before" in again.stdout
    for folder in ("fedacs/seed_0", "fedacs/seed_1", "fedavg/seed_0", "fedavg/seed_1"):
        assert contents(out / folder) == contents(reference / folder)


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def children(pid):
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or [
        int(text) for task in Path(f"/proc/{pid}/task").iterdir() for text in (task / "children").read_text().split()
    ]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


DEADLY = """
import os, signal
from lightning.pytorch.callbacks import Callback
class Deadly(Callback):
    def on_round_end(self, loop, result):
        if loop.round_index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_interrupted_it_says_what_it_kept(tmp_path):
    (tmp_path / "short.yaml").write_text("loop: {rounds: 2}\n")
    (tmp_path / "long.yaml").write_text("loop: {rounds: 100000, evaluate_every: 100000}\n")
    names = f"{tmp_path / 'short.yaml'},{tmp_path / 'long.yaml'}"
    settings = ["--config", "digits.yaml", "--algorithms", names, "--seeds", "0", "--jobs", "1", "--logger", "none"]
    started = subprocess.Popen(
        command(tmp_path / "out", settings=settings),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that starts the tests in the background lets them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    second = tmp_path / "out" / "long" / "seed_0"  # there when the second run begins; its rows may come at its end
    while not second.is_dir():
        assert started.poll() is None
        time.sleep(0.1)
    os.kill(started.pid, signal.SIGINT)
    try:
        said = started.communicate(timeout=60)[1]
    finally:
        started.kill()
    assert started.returncode == 130
    assert f"interrupted: 1 of 2 runs are finished and kept in {tmp_path / 'out'}, 1 have begun" in said


def test_advice_names_options_of_compare(finished, capfd):
    settings = ["--config", "digits.yaml", "--algorithms", "fedavg", "--seeds", "0", "--logger", "none", "--no-report"]
    assert main(["compare", *settings, *SMALL, "--loop.lr", "0.5", "--out", str(finished[0])]) == 2
    error = capfd.readouterr().err
    assert "give another --out, or --overwrite" in error
    assert "--run_dir" not in error


def test_failing_runs_stop_no_other_and_are_named_at_the_end(tmp_path, capfd, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    (tmp_path / "dying.yaml").write_text("loop: {callbacks: [{class_path: deadly.Deadly}]}\n")
    (tmp_path / "wrong.yaml").write_text("loop: {lr: -1}\n")
    shipped = configs.FOLDER / "algorithms" / "fedavg.yaml"
    for name in ("dying", "wrong"):
        settings = configs.merge(configs.read(shipped), configs.read(tmp_path / f"{name}.yaml"))
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    names = f"{tmp_path / 'dying.yaml'},{tmp_path / 'wrong.yaml'},fedavg"
    settings = ["--config", "digits.yaml", "--algorithms", names, "--seeds", "3", "--jobs", "1", "--loop.rounds", "3"]
    more = ("--logger", "none", "--no-report", "--trust", "deadly", "--out", str(tmp_path / "out"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["compare", *settings, *more]) == 1
    done = capfd.readouterr()
    assert "3 runs: 1 finished, 2 failed" in done.out
    assert "failed: dying seed 3: its process was ended by SIGKILL" in done.err
    assert "failed: wrong seed 3: lr=-1" in done.err
    assert "Traceback" not in done.err
    assert (tmp_path / "out" / "fedavg" / "seed_3" / "summary.json").is_file()


def test_jobs_go_seed_by_seed():
    _, planned = jobs.plan(["digits.yaml"], ["fedacs.yaml", "fedavg.yaml"], [], [0, 1], None, ["--loop.rounds", "7"])
    assert [job.run_dir for job in planned] == [
        f"runs/compare_digits_rounds=7/{algorithm}/seed_{seed}" for seed in (0, 1) for algorithm in ("fedacs", "fedavg")
    ]
    assert planned[0].num_rounds == 7


def test_all_algorithms_have_the_reference_first():
    names = jobs.parse_algorithms("all")
    assert names[0] == "fedacs.yaml"
    assert sorted(names) == sorted(f"{name}.yaml" for name in configs.names("algorithms"))


def test_whole_configs_are_compared_under_their_own_names(tmp_path):
    (tmp_path / "mine.yaml").write_text("{}")
    _, planned = jobs.plan([], [], ["digits_fedacs.yaml", str(tmp_path / "mine.yaml")], [0], None, [])
    assert [job.algorithm for job in planned] == ["digits_fedacs", "mine"]
    _, planned = jobs.plan([], [], ["mnist_fedacs.yaml", "mnist_fedavg.yaml"], [0], None, [])
    assert [(job.data, job.algorithm) for job in planned] == [("mnist", "fedacs"), ("mnist", "fedavg")]


def test_shares_of_threads_do_not_depend_on_what_is_left(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert compare.shares(None, None, 81) == (8, 1)
    assert compare.shares(2, None, 81) == (2, 4)
    assert compare.shares(None, None, 2) == (2, 4)
    assert compare.shares(3, 1, 81) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either"),
        (["--algorithms", "nonsense"], "algorithm 'nonsense' is unknown"),
        (["--algorithms", "fedacs,fedacs"], "called the same"),
        (["--config", "digits_fedacs.yaml", "--algorithms", "fedavg"], "already names an algorithm"),
        (["--config", "nowhere.yaml", "--algorithms", "fedavg"], "neither a file nor a shipped config"),
        (["--algorithms", "fedacs", "--seeds", "3:1"], "--seeds"),
        (["--algorithms", "fedacs", "--seeds", "a"], "not understood"),
        (["--algorithms", "fedacs", "--seed", "1"], "decided by compare"),
        (["--algorithms", "fedacs", "--jobs", "0"], "--jobs 0"),
        (["--algorithms", "fedacs", "stray"], "'stray' is not understood"),
        (["--configs", "digits_fedacs.yaml", "--config", "digits.yaml"], "--configs are complete"),
    ],
)
def test_what_the_user_can_fix_is_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_second_comparison_is_kept_out_of_the_folder(tmp_path, capsys):
    with FolderLock(tmp_path, "a comparison"):
        assert main(["compare", "--algorithms", "fedacs", "--out", str(tmp_path)]) == 2
    assert f"in use by a comparison of process {os.getpid()} on" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["compare", "report", "dashboard"])
def test_help_imports_nothing_heavy(name):
    code = (
        f"import sys; from fl_lightning.cli.main import main\ntry: main([{name!r}, '--help'])\n"
        "except SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"fl-lightning {name}" in done.stdout
