"""A run that stops anywhere and goes on ends as one that never stopped, bit for bit.

That every algorithm does so is shown by ``tests/golden/test_golden.py``, on the runs that it has made.
"""

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from fl_lightning import output
from fl_lightning.callbacks import RoundCheckpoint, RunRecorder, StopAtTarget
from fl_lightning.cli.main import main
from fl_lightning.module import FederatedModule
from fl_lightning.runs.identity import differences
from fl_lightning.runs.storage import checkpoints, read_checkpoint
from stored_runs import arguments, content_of, make_run, plain
from systems import gaussian_federation, small_loop

ROUNDS = 5


class CountingModule(FederatedModule):
    """Keeps a number that is no part of the flat weights."""

    def __init__(self, network, num_classes):
        super().__init__(network, num_classes)
        self.register_buffer("num_evaluations", torch.tensor(0))

    def test_step(self, batch, batch_idx):
        super().test_step(batch, batch_idx)
        self.num_evaluations += 1
        self.log("noise", torch.rand(()))  # from torch's own stream


class Killed(BaseException):
    """Like a SIGKILL, nobody catches it."""


class Kill:
    def __init__(self, hook: str, number: int) -> None:
        self.number = number
        setattr(self, hook, self._strike)

    def _strike(self, loop, **_):
        if loop.round_index == self.number:
            raise Killed


def unbroken(name, run_dir, *more):
    assert make_run(name, run_dir, ROUNDS, *more).execute("auto") == "finished"
    return content_of(run_dir)


def broken(name, run_dir, deaths, *more):
    """Kill the run at each of these moments, then let it finish."""
    for hook, number in deaths:
        run = make_run(name, run_dir, ROUNDS, *more)
        # Before the recorder and the checkpoint: the round is done, and neither knows.
        run.loop.callbacks.insert(4, Kill(hook, number))
        with pytest.raises(Killed):
            run.execute("auto")
    assert make_run(name, run_dir, ROUNDS, *more).execute("auto") == "finished"
    return content_of(run_dir)


@pytest.mark.parametrize(
    "more",
    [
        ["--loop.calibration.scope=average"],
        ["--loop.calibration.scope=average", "--loop.solver.proximal=0.5"],
        ["--loop.sampling.sampler.knowledge=estimated"],
        ["--loop.evaluate_every=2"],
        ["--loop.channel.multiplicity=independent", "--seed=3"],
        ["--loop.solver=fl_lightning.solvers.TorchOptimizer", "--loop.solver.optimizer=torch.optim.SGD",
         "--loop.solver.optimizer.momentum=0.9"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_kind_of_memory_resumes_exactly(more, tmp_path):
    expected = unbroken("digits_fedacs", tmp_path / "a", *more)
    assert broken("digits_fedacs", tmp_path / "b", [("on_round_start", 1), ("on_round_end", 4)], *more) == expected


def test_killed_before_the_first_checkpoint_and_before_the_last_one(tmp_path):
    expected = unbroken("toy_fedavg", tmp_path / "a")
    deaths = [("on_round_start", 0), ("on_federation_end", ROUNDS)]
    assert broken("toy_fedavg", tmp_path / "b", deaths) == expected


def test_counters_and_buffers_of_the_module_come_back(tmp_path):
    def run(folder, rounds, resume_from=None):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
        module = CountingModule(network, 3)
        callbacks = [RunRecorder(str(folder)), RoundCheckpoint(str(folder / "checkpoints"), min_seconds=0)]
        small_loop(rounds=rounds, callbacks=callbacks).run(module, gaussian_federation(), resume_from)

    run(tmp_path / "a", 6)
    run(tmp_path / "b", 3)
    (_, path) = checkpoints(tmp_path / "b" / "checkpoints")[-1]
    saved = read_checkpoint(path)["loop"]
    assert "num_evaluations" in saved["counters"]
    run(tmp_path / "b", 6, saved)
    assert content_of(tmp_path / "a") == content_of(tmp_path / "b")


def test_a_finished_run_is_kept_unless_asked_otherwise(tmp_path, capsys):
    command = ["train", *arguments("toy_fedavg", tmp_path, 3)]
    assert main(command) == 0
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr()
    assert "already finished" in said.err
    assert "reached: distance" in said.out
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert main([*command, "--resume", "never"]) == 0
    assert (tmp_path / "metrics.csv").stat().st_mtime_ns > written[tmp_path / "metrics.csv"]


def test_another_config_is_refused_and_its_keys_are_named(tmp_path, capsys):
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3)]) == 0
    capsys.readouterr()
    changed = arguments("toy_fedacs", tmp_path, 4, "--loop.lr=0.5", "--seed=1")
    assert main(["train", *changed]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for part in ("loop.rounds is 3 there and 4 here", "loop.lr", "seed is 0 there and 1 here", "sampler.class_path"):
        assert part in error
    assert main(["train", *changed, "--resume", "never"]) == 0


def test_what_does_not_change_a_result_may_differ():
    there = "seed: 0\nrun_dir: a\nlogger: none\nfabric: {devices: 1, precision: null}\ncheckpoint: {keep: 2}"
    here = "seed: 0\nrun_dir: b\nlogger: [wandb]\nfabric: {devices: 2, precision: null}\ncheckpoint: {keep: 3}"
    assert differences(there, here) == []
    assert differences(there, here.replace("precision: null", "precision: bf16-mixed")) == [
        'fabric.precision is null there and "bf16-mixed" here'
    ]


def test_a_run_goes_on_from_a_named_checkpoint_and_may_be_prolonged(tmp_path, capsys):
    expected = unbroken("toy_fedavg", tmp_path / "a")
    assert main(["train", *arguments("toy_fedavg", tmp_path / "b", 3)]) == 0
    (_, older), (_, newer) = checkpoints(tmp_path / "b" / "checkpoints")
    more = [argument for argument in arguments("toy_fedavg", tmp_path / "b", ROUNDS) if "run_dir" not in argument]
    assert main(["train", *more, "--resume", str(older)]) == 0
    assert content_of(tmp_path / "b") == expected
    assert "continuing after round 2 of 5" in capsys.readouterr().err
    assert not newer.exists()
    assert main(["train", *more, "--resume", str(tmp_path / "nowhere")]) == 2
    assert main(["train", *more, "--resume", str(tmp_path / "b"), "--run_dir", str(tmp_path / "c")]) == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_is_used(damage, tmp_path, capsys):
    expected = unbroken("toy_fedavg", tmp_path / "a")
    run = make_run("toy_fedavg", tmp_path / "b", ROUNDS)
    run.loop.callbacks.append(Kill("on_round_end", 4))
    with pytest.raises(Killed):
        run.execute("auto")
    (_, path) = checkpoints(tmp_path / "b" / "checkpoints")[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-100], "flip": data, "empty": b"", "text": b"hello"}[damage])
    assert main(["train", *arguments("toy_fedavg", tmp_path / "b", ROUNDS)]) == 0
    said = capsys.readouterr().err
    assert str(path) in said
    assert "continuing after round 3 of 5" in said
    assert content_of(tmp_path / "b") == expected


def test_without_a_sound_checkpoint_one_line_says_so(tmp_path, capsys):
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3)]) == 0
    (tmp_path / "summary.json").unlink()
    for _, path in checkpoints(tmp_path / "checkpoints"):
        path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3)]) == 2
    error = capsys.readouterr().err
    assert "--resume never" in error
    assert len(error.splitlines()) == 1


def test_lost_metrics_are_noticed(tmp_path, capsys):
    assert main(["train", *arguments("toy_fedavg", tmp_path, 3)]) == 0
    (tmp_path / "metrics.csv").unlink()
    more = [argument for argument in arguments("toy_fedavg", tmp_path, 5) if "run_dir" not in argument]
    capsys.readouterr()
    assert main(["train", *more, "--resume", str(tmp_path)]) == 2
    assert "does not have the rounds 1 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_finish_the_round_save_and_say_how_to_go_on(number, code, tmp_path, capsys):
    rounds = 20
    command = ["train", *arguments("toy_fedvarp", tmp_path / "b", rounds)]

    def send():
        while not checkpoints(tmp_path / "b" / "checkpoints"):
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(command) == code
    sender.join()
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    errors = capsys.readouterr().err
    assert "paused after round" in errors
    assert "the same command resumes from there" in errors
    assert not (tmp_path / "b" / "summary.json").exists()
    assert main(command) == 0
    assert main(["train", *arguments("toy_fedvarp", tmp_path / "a", rounds)]) == 0
    assert content_of(tmp_path / "b") == content_of(tmp_path / "a")


def test_what_is_compared_separates_zeros():
    assert plain(torch.tensor([0.0])) != plain(torch.tensor([-0.0]))


class _Killed(BaseException):
    """Like a SIGKILL, nobody catches it."""


class _KillAtTheEnd:
    def on_federation_end(self, loop):
        raise _Killed


def test_a_run_that_stopped_at_its_target_and_was_killed_before_its_summary_trains_no_further(tmp_path):
    def make(folder, *callbacks):
        run = make_run("toy_fedavg", tmp_path / folder, 6)
        run.loop.callbacks[3:3] = [*callbacks]
        run.loop.callbacks[-1:-1] = [StopAtTarget(1e9, monitor="distance", mode="min")]
        return run

    whole = make("whole")
    whole.execute("auto")
    assert whole.loop.round_index == 1
    with pytest.raises(_Killed):
        make("killed", _KillAtTheEnd()).execute("auto")
    assert not (tmp_path / "killed" / "summary.json").exists()
    again = make("killed")
    again.execute("auto")
    assert again.loop.round_index == 1
    assert content_of(tmp_path / "killed") == content_of(tmp_path / "whole")
    longer = make("killed")
    longer.execute(str(tmp_path / "killed"))
    assert longer.loop.round_index == 2  # prolonged on purpose


def test_a_full_disk_and_then_a_failing_sync_leave_a_run_that_can_be_resumed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    sync = output.sync_folder
    first = make_run("toy_fedavg", tmp_path / "run", 4)
    with monkeypatch.context() as patch:
        patch.setattr("fl_lightning.callbacks.checkpoint.write_checkpoint", full)
        with pytest.raises(OSError, match="No space"):
            first.execute("auto")
    second = make_run("toy_fedavg", tmp_path / "run", 4, "--checkpoint.every_n_rounds=2")
    with monkeypatch.context() as patch:
        patch.setattr(output, "sync_folder", lambda folder: full() if folder.name == "checkpoints" else sync(folder))
        with pytest.raises(OSError, match="cannot write"):
            second.execute("auto")
    for _ in range(2):
        make_run("toy_fedavg", tmp_path / "run", 4).execute("auto")
    make_run("toy_fedavg", tmp_path / "whole", 4).execute("auto")
    assert content_of(tmp_path / "run") == content_of(tmp_path / "whole")
    assert not (tmp_path / "run" / ".replaced").exists()
