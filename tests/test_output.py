"""Nobody has to read what a run prints: a closed pipe, a full disk or a strange character never end or fail it."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_lightning.cli.main import main
from fl_lightning.output import forgiving, forgiving_output, sync_folder, write_durably
from stored_runs import arguments

ROOT = Path(__file__).resolve().parent.parent


class Broken(io.StringIO):
    """A stream whose reader is gone, or whose disk is full."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_a_run_ends_well_without_anybody_to_read_it(number, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Broken(number))
    monkeypatch.setattr(sys, "stderr", Broken(number))
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3)]) == 0
    assert (tmp_path / "summary.json").is_file()


def test_an_unprintable_last_line_is_escaped(tmp_path, monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii", write_through=True))
    assert main(["train", *arguments("toy_fedavg", tmp_path / "läufe", 2)]) == 0
    assert rb"l\xe4ufe" in printed.getvalue().splitlines()[-2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_closed_pipes_full_disks_and_closed_files_of_a_real_process(tmp_path):
    """Python's own last flush must not fail either, and no file may get the number of a closed standard file."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for number, redirected in enumerate(["2>/dev/full | true", ">/dev/full 2>&1", "<&- >&- 2>&-"]):
        # The first and the last train; help, which needs no torch, is long enough to fill what is flushed at the end.
        given = ["--help"] if number == 1 else arguments("toy_fedavg", tmp_path / f"run{number // 2}", 3)
        line = " ".join(f"'{word}'" for word in [sys.executable, str(ROOT / "train.py"), *given])
        script = f"set -o pipefail; {line} {redirected}"
        done = subprocess.run(["bash", "-c", script], env=environment, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, (redirected, done.stderr)
    header = (tmp_path / "run1" / "metrics.csv").read_text().splitlines()[0]
    assert header.startswith("round,")


def test_a_stream_that_was_closed_takes_text():
    stream = forgiving(None)
    assert stream.write("text") == 4
    stream.flush()
    assert not stream.isatty()


def test_the_streams_are_put_back(capsys):
    before = sys.stdout, sys.stderr
    with forgiving_output():
        print("seen")
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "seen\n"


def test_no_folder_is_opened_on_windows(tmp_path, monkeypatch):
    """Windows refuses to open a folder, and needs no help to store its names."""
    file = tmp_path / "file"

    def refuse(path, *others):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, *others)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        sync_folder(tmp_path)
    monkeypatch.setattr(os, "name", "nt")
    write_durably(file, b"content")
    monkeypatch.undo()
    assert file.read_bytes() == b"content"
