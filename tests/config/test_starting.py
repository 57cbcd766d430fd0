"""Signals and missing partners before the first round: nobody waits for long, and no process is left."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fl_lightning.cli.main import main
from fl_lightning.config.building import Run
from fl_lightning.config.processes import interruptible
from fl_lightning.data.fetching import FetchError, download, workspace
from stored_runs import arguments, make_run

ROOT = Path(__file__).resolve().parents[2]
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find other processes")


def start(run_dir, *more):
    command = [sys.executable, str(ROOT / "train.py"), *arguments("toy_fedavg", run_dir, 3), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def is_running(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children(number):
    return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@needs_proc
def test_a_process_whose_partner_was_ended_at_the_start_ends_too(tmp_path):
    process = start(tmp_path / "run", "--fabric.devices=2")
    try:
        assert wait_until(lambda: process.poll() is not None or children(process.pid), 240)
        (child,) = children(process.pid)
        # Once it runs our code, as it does for the seconds that the imports take.
        assert wait_until(lambda: b"train.py" in Path(f"/proc/{child}/cmdline").read_bytes(), 60)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        assert wait_until(lambda: not is_running(child), 60), "the second process is still waiting"
    finally:
        process.kill()
        process.communicate()


def test_a_node_that_does_not_come_is_waited_for_with_words_and_an_end(tmp_path):
    process = start(tmp_path / "run", "--fabric.num_nodes=2", "--start_timeout=3")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2, errors
    lines = errors.strip().splitlines()
    assert any(line.startswith("waiting for all 2 processes on 2 nodes (this is node 0) to meet at") for line in lines)
    assert lines[-1].startswith("fl-lightning: error: after 3 s not all 2 processes")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["0", "-1", ".inf", ".nan"])
def test_a_time_that_is_none_is_refused(value, tmp_path, capsys):
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3), f"--start_timeout={value}"]) == 2
    assert "start_timeout" in capsys.readouterr().err


class Stalling(http.server.BaseHTTPRequestHandler):
    """Promises a file and sends a little of it."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)
        self.wfile.flush()
        self.server.asked.set()
        self.server.over.wait(30)

    def log_message(self, *_):
        pass


@pytest.fixture
def stalling():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    server.asked, server.over = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()


class Downloads:
    """Data that have to be fetched first."""

    def __init__(self, url, root):
        self.url, self.root = url, root

    def load(self, seed):
        with workspace(self.root) as folder:
            download(self.url, folder / "data.bin", "0" * 32)
        raise AssertionError("the download was not broken off")


def strike(asked, number, times):
    asked.wait(30)
    time.sleep(0.3)
    times.append(time.monotonic())
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_a_download_acts_within_a_second(number, code, stalling, tmp_path):
    run = make_run("toy_fedavg", tmp_path / "run", 3)
    run.data = Downloads(f"http://127.0.0.1:{stalling.server_port}/data.bin", tmp_path / "data")
    times: list[float] = []
    threading.Thread(target=strike, args=(stalling.asked, number, times), daemon=True).start()
    with interruptible(run.pause), pytest.raises(SystemExit) as raised:
        run.execute("auto")
    assert time.monotonic() - times[0] < 1
    assert raised.value.code == code
    assert not (tmp_path / "run").exists()
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".fetch.lock"]  # nothing half
    with pytest.raises(FetchError):  # and it still works as a function
        download("http://127.0.0.1:9/nothing", tmp_path / "got", "0" * 32)


def test_the_exit_code_of_a_signal_reaches_the_shell(tmp_path, monkeypatch):
    def interrupted(run, resume):
        raise SystemExit(128 + signal.SIGTERM)

    monkeypatch.setattr(Run, "execute", interrupted)
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3)]) == 143
