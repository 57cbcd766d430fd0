"""What the fuzz tests share: how many examples, a time limit, a trap, and what a command may say."""

import contextlib
import io
import signal
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from fl_lightning.cli.main import main
from fl_lightning.loop import FederatedLoop

SECONDS = 120  # until something counts as hanging; the machine may be busy
CANARY = "stranger_canary"


def amounts(tenth):
    """The few that CI makes, always the same, and the whole under the marker ``slow``."""
    return pytest.mark.parametrize("amount", [tenth // 10, pytest.param(10 * tenth, marks=pytest.mark.slow)])


def fuzz(strategy, amount, check):
    options = {"deadline": None, "database": None, "derandomize": amount < 2000, "print_blob": False}
    settings(max_examples=amount, suppress_health_check=list(HealthCheck), **options)(given(strategy)(check))()


class Hang(BaseException):
    """No handler of the program catches it."""


@contextlib.contextmanager
def time_limit(seconds=SECONDS):
    def ring(*_):
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder deep enough for relative paths, one round for each run, and code that tells when it was imported."""
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / f"{CANARY}.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w')\nclass Evil: pass\ndef evil(*a): pass\n"
    )
    monkeypatch.syspath_prepend(str(trap))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FL_LIGHTNING_TRACEBACK", raising=False)
    monkeypatch.setattr(FederatedLoop, "finished", property(lambda loop: loop.round_index >= min(1, loop.rounds)))
    yield folder
    assert not (tmp_path / "imported").exists(), "foreign code was imported"
    assert CANARY not in sys.modules


def tried(command):
    """Run a command line and return its exit code, after checking that what it says is fit for a user."""
    out, error = io.StringIO(), io.StringIO()
    with time_limit(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(command)
    lines = error.getvalue().strip().splitlines()
    assert code in (0, 2), (code, command)
    assert "Traceback" not in error.getvalue()
    if code == 2:
        assert lines, command
        assert lines[-1].startswith("fl-lightning: error: "), lines
        # Before it may stand what a run says that fails later: its rounds, notes and warnings, one line each.
        assert not any(line.startswith((" ", "  File ")) for line in lines[:-1]), lines
    return code
