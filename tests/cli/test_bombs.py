"""Small inputs that would take all memory or all time are refused, quickly and in one line."""

import io
import os
import resource
import signal
import time
import zipfile
from contextlib import contextmanager

import pytest
import torch
import yaml

from fl_lightning.cli.main import main
from fl_lightning.runs import storage
from fl_lightning.runs.storage import DamagedFileError, read_checkpoint, write_checkpoint
from stored_runs import arguments

SECONDS = 10
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)
INLINE = (
    "[&a [1,1,1,1,1,1,1,1,1,1]"
    + "".join(f", &{chr(98 + level)} [{','.join([f'*{chr(97 + level)}'] * 10)}]" for level in range(10))
    + "]"
)


class TooLongError(BaseException):
    """Nobody catches it."""


@contextmanager
def at_most(seconds):
    def ring(*_):
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _warm(tmp_path):
    main(["train", "--config", "toy_fedavg.yaml", "--print_config"])  # imports, which take seconds


def refused(capsys, tmp_path, config, *more):
    file = tmp_path / "config.yaml"
    file.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    capsys.readouterr()
    with at_most(SECONDS):
        options = ["--config", str(file), f"--run_dir={tmp_path / 'run'}", "--logger=none", "--loop.rounds=1"]
        assert main(["train", "--config", "toy_fedavg.yaml", *options, *more]) == 2
    *_, error = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("fl-lightning: error: ")
    return error


PARTS = ("model", "data", "fabric", "loop", "checkpoint")
PLACES = (*PARTS, "loop.sampling", "loop.schedule", "loop.budget", "loop.weights")


def at(place, value):
    for name in reversed(place.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("place", [*PLACES, "loop.callbacks", "seed", "logger", "run_dir"])
def test_aliases_inside_a_text_are_not_unfolded(place, tmp_path, capsys):
    if place not in ("run_dir", "logger"):
        refused(capsys, tmp_path, at(place, INLINE))
        refused(capsys, tmp_path, at(place, f"[{yaml.safe_dump(INLINE)}]"))
        refused(capsys, tmp_path, at(place, '"' + INLINE.replace("&", r"\x26") + '"'))
    refused(capsys, tmp_path, {}, f"--{place}={INLINE}", "--loop.rounds=nothing")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["bomb", "pipe", "/dev/zero"])
def test_files_that_a_config_names_are_not_read_as_configs(kind, place, tmp_path, capsys):
    path = kind
    if kind == "bomb":
        path = str(tmp_path / "bomb.yaml")
        (tmp_path / "bomb.yaml").write_text(BOMB)
    elif kind == "pipe":
        path = str(tmp_path / "pipe.yaml")
        os.mkfifo(path)
    refused(capsys, tmp_path, at(place, path))
    refused(capsys, tmp_path, {}, f"--{place}={path}")


def test_a_bomb_of_a_config_is_refused(tmp_path, capsys):
    refused(capsys, tmp_path, BOMB)
    refused(capsys, tmp_path, "loop:\n  weights: [" + "1, " * 600_000 + "1]\n")


def test_an_inline_partition_of_thousands_is_refused_at_once(tmp_path, capsys):
    indices = [list(range(1000 * part, 1000 * (part + 1))) for part in range(2)]
    partition = {"class_path": "fl_lightning.data.GivenIndices", "init_args": {"indices": indices}}
    data = {"class_path": "fl_lightning.data.MNIST", "init_args": {"partition": partition}}
    error = refused(capsys, tmp_path, at("data", data))
    assert "2,000 values" in error


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_deliveries_come_from_a_plain_file(name, tmp_path, capsys):
    path = name if name != "pipe" else str(tmp_path / "pipe")
    if name == "pipe":
        os.mkfifo(path)
    engine = {"class_path": "fl_lightning.engine.Replayed", "init_args": {"path": path}}
    assert "plain file" in refused(capsys, tmp_path, at("loop.engine", engine))


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "metrics.csv", "summary.json", ".fl_lightning.json", "checkpoints/round_00000001.ckpt"],
)
def test_pipes_in_a_runs_folder_do_not_hang(name, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    os.mkfifo(run / name)
    with at_most(SECONDS):
        main(["train", *arguments("toy_fedavg", run, 1)])
        main(["report", str(run), "--logger=none", "--no-figures"])


def test_a_compressed_checkpoint_is_refused_before_it_unfolds(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    torch.save({"weights": torch.zeros(50_000_000)}, buffer)
    packed = io.BytesIO()
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for record in source.infolist():
            target.writestr(record.filename, source.read(record))
    monkeypatch.setattr(storage.torch, "save", lambda _, file: file.write(packed.getvalue()))
    write_checkpoint(tmp_path / "round_00000001.ckpt", {})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with pytest.raises(DamagedFileError, match="something else than a checkpoint"):
        read_checkpoint(tmp_path / "round_00000001.ckpt")
    assert time.monotonic() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
