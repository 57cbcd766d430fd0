"""Comparisons on a Ray cluster and as Slurm job arrays: the bytes of the local pool, also when a node is killed."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_lightning.cli import compare
from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.jobs import slurm
from fl_lightning.jobs.jobs import Job
from fl_lightning.jobs.pool import play
from fl_lightning.jobs.worker import read_job
from stored_runs import content_of

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ["--config", "digits.yaml", "--algorithms", "fedacs,fedavg", "--loop.batch_size", "8", "--logger", "none"]


def environment(**more):
    return os.environ | {"WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)} | more


def run(arguments, folder, **more):
    return subprocess.run(
        [sys.executable, "-m", "fl_lightning", "compare", *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )


def sbatch(folder, text):
    """Put a program called sbatch into a folder and return the folder's path."""
    program = folder / "sbatch"
    program.write_text("#!/bin/bash\n" + text)
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return str(folder)


def test_a_job_array_is_written_and_submitted(tmp_path, monkeypatch, capsys):
    """The program called sbatch notes what it is given and answers as Slurm does."""
    (tmp_path / "bin").mkdir()
    path = sbatch(tmp_path / "bin", f'echo "$@" >> {tmp_path}/given; echo "7$(wc -l < {tmp_path}/given);cluster"\n')
    monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    arguments = [*SETTINGS, "--seeds", "0:3", "--jobs", "4", "--threads", "2", "--slurm=--partition=long", "--out", "o"]
    assert main(["compare", *arguments]) == 0
    assert "6 runs in o, submitted as job 71: squeue -j 71" in capsys.readouterr().out
    assert (tmp_path / "given").read_text().splitlines() == [
        "--parsable o/slurm/array.sh",
        "--parsable --dependency=afterany:71 o/slurm/report.sh",
    ]
    script = (tmp_path / "o" / "slurm" / "array.sh").read_text()
    for line in ("#SBATCH --array=0-5%4", "#SBATCH --cpus-per-task=2", "#SBATCH --partition=long", "#SBATCH --requeue"):
        assert line in script.splitlines()
    assert "export OMP_NUM_THREADS=2" in script
    assert subprocess.run(["bash", "-n", str(tmp_path / "o" / "slurm" / "array.sh")], check=False).returncode == 0
    jobs = [read_job(tmp_path / "o" / "slurm" / "jobs.jsonl", number) for number in range(6)]
    assert [(job.algorithm, job.seed) for job in jobs] == [(a, s) for s in range(3) for a in ("fedacs", "fedavg")]
    with pytest.raises(configs.ConfigError, match="has 6 jobs, there is none with the number 6"):
        read_job(tmp_path / "o" / "slurm" / "jobs.jsonl", 6)


def test_without_slurm_the_command_is_named_and_a_refusal_is_passed_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert main(["compare", *SETTINGS, "--slurm", "--out", "o", "--no-report"]) == 0
    assert "there is no sbatch here: on a machine of the cluster, sbatch o/slurm/array.sh" in capsys.readouterr().out
    monkeypatch.setenv("PATH", sbatch(tmp_path, "echo invalid partition >&2; exit 1\n") + ":/bin:/usr/bin")
    assert main(["compare", *SETTINGS, "--slurm", "--out", "o"]) == 2
    assert "sbatch o/slurm/array.sh: invalid partition" in capsys.readouterr().err


def test_one_cluster_at_a_time(capsys):
    assert main(["compare", *SETTINGS, "--slurm", "--ray", "auto"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_cluster_has_a_queue_of_its_own():
    assert compare.shares(None, None, 12, on_cluster=True) == (12, 1)
    assert compare.shares(5, 3, 12, on_cluster=True) == (5, 3)


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path):
    job = Job(algorithm="fedacs", data="digits", seed=0, configs=[], run_dir="x")
    (event,) = play(job, {}, str(tmp_path / "elsewhere"))
    assert event.known
    assert "needs a folder that all nodes share" in event.reason


def test_ray_is_an_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["compare", *SETTINGS, "--ray", "auto", "--out", str(tmp_path)]) == 2
    assert "pip install -e '.[ray]' in your clone" in capsys.readouterr().err


@pytest.mark.slow
def test_a_job_array_makes_the_runs_of_the_local_pool(tmp_path):
    """The program called sbatch runs the tasks of the array one after the other, and then the report."""
    (tmp_path / "bin").mkdir()
    loop = 'for n in 0 1; do SLURM_ARRAY_TASK_ID=$n bash "$2" > /dev/null || exit 1; done'
    path = sbatch(tmp_path / "bin", f'if [[ "$2" == *array.sh ]]; then {loop}; else bash "$3" >&2; fi; echo 5\n')
    arguments = [*SETTINGS, "--seeds", "0:1", "--loop.rounds", "3", "--threads", "1"]
    done = run([*arguments, "--slurm", "--out", "array"], tmp_path, PATH=f"{path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "array" / "report" / "index.html").is_file()
    assert run([*arguments, "--jobs", "1", "--no-report", "--out", "local"], tmp_path).returncode == 0
    for name in ("fedacs", "fedavg"):
        assert content_of(tmp_path / "array" / name / "seed_0") == content_of(tmp_path / "local" / name / "seed_0")


def free_port(first):
    for port in range(first, first + 500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise OSError("no free port")


def start_node(folder, *options):
    """Start a node of Ray with one core, and wait until it says that it runs."""
    small = ["--num-cpus=1", "--object-store-memory=80000000", "--block", "--disable-usage-stats"]
    path = folder / f"node_{len(list(folder.glob('node_*')))}.log"
    with path.open("w") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *small]
        node = subprocess.Popen(command, stdout=log, stderr=log, env=environment(RAY_worker_niceness="0"))
    until = time.monotonic() + 300
    while "Ray runtime started" not in path.read_text():
        if node.poll() is not None or time.monotonic() > until:
            kill(node)
            raise RuntimeError(path.read_text())
        time.sleep(0.2)
    return node


def family(pid):
    """Return a process and all that it started, which may have groups of their own."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def kill(node):
    for pid in family(node.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()


def under_way(folder):
    """Return the runs that have a checkpoint and are not finished."""
    saved = {path.parent.parent for path in folder.glob("*/*/checkpoints/round_*.ckpt")}
    return [run for run in saved if not (run / "summary.json").exists()]


@pytest.mark.slow
def test_a_killed_node_changes_no_byte(tmp_path):
    """Twelve runs on two nodes of one machine; the second is killed in the middle."""
    pytest.importorskip("ray")
    port = free_port(6390)
    arguments = [*SETTINGS, "--seeds", "0:6", "--loop.rounds", "30", "--threads", "1", "--checkpoint.min_seconds", "0"]
    head = start_node(tmp_path, "--head", f"--port={port}", "--include-dashboard=false")
    second = None
    try:
        second = start_node(tmp_path, f"--address=127.0.0.1:{port}")
        command = [sys.executable, "-m", "fl_lightning", "compare", *arguments, "--no-report"]
        running = subprocess.Popen(
            [*command, "--ray", f"127.0.0.1:{port}", "--out", "ray"],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        while len(under_way(tmp_path / "ray")) < 2:  # one on each node
            assert running.poll() is None, running.stderr.read()
            time.sleep(0.1)
        kill(second)
        _, said = running.communicate(timeout=1500)
        assert running.returncode == 0, said
        (tmp_path / "said.txt").write_text(said)
        assert "on 2 nodes of Ray" in said
        assert "starts again" in said
        assert "continuing after round" in "".join(log.read_text() for log in (tmp_path / "ray").glob("*/*.log"))
    finally:
        for node in filter(None, (second, head)):
            kill(node)
    assert subprocess.run([*command, "--out", "local"], cwd=tmp_path, env=environment(), check=False).returncode == 0
    folders = sorted((tmp_path / "local").glob("*/seed_*"))
    folders = [folder for folder in folders if folder.is_dir()]
    assert len(folders) == 12
    for folder in folders:
        assert content_of(tmp_path / "ray" / folder.relative_to(tmp_path / "local")) == content_of(folder)
    assert json.loads((folders[0] / "summary.json").read_text())["rounds"] == 30


@pytest.mark.parametrize("name", ["a\ntouch RAN\n#", "a\rb", "a\x1bb"])
def test_the_name_of_a_folder_cannot_become_a_line_of_a_slurm_script(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job(configs=["toy.yaml"], seed=0, run_dir="run", data="toy", algorithm="fedavg")
    with pytest.raises(configs.ConfigError, match="line breaks"):
        slurm.write(tmp_path / name, [job], [], 1, 1, {})
