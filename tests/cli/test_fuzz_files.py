"""Files from strangers, or from a bad disk: read, or refused in one line; never run."""

import csv
import io
import json
import random

import numpy as np
import pytest
import torch
from fuzzing import amounts, fuzz, tried, world
from hypothesis import strategies as st

from fl_lightning.callbacks.schedule import read_conditions
from fl_lightning.data.images import Images, read_images, save_images
from fl_lightning.runs.records import read_rounds
from fl_lightning.runs.storage import DamagedFileError, checkpoints, read_checkpoint, write_checkpoint
from stored_runs import arguments, make_run, plain

__all__ = ["world"]  # a fixture

junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=5), st.just({}), st.just([]),
    st.builds(lambda size: torch.zeros(size), st.integers(0, 4)), st.just({"a": [1]}),
)  # fmt: skip


def damaged(data: bytes, seed: int) -> bytes:
    """Cut, flip, double, drop or overwrite some bytes."""
    rng = random.Random(seed)
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 5])):
        start = rng.randrange(len(result) + 1)
        end = min(len(result), start + rng.choice([1, 2, 8, 200]))
        noise = bytes(rng.randrange(256) for _ in range(end - start))
        result[start:end] = rng.choice([noise, b"", noise + noise, result[start:end] * 2, b"\x00" * (end - start)])
        if rng.random() < 0.2:
            del result[start:]
    return bytes(result)


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('code was run')",)


@pytest.fixture
def stored(world):
    """A finished toy run of one round, and its checkpoint."""
    make_run("toy_fedvarp", world / "run", 1).execute("never")
    ((_, path),) = checkpoints(world / "run" / "checkpoints")
    return path


@amounts(100)
def test_damaged_checkpoints_are_recognised(amount, stored):
    original = stored.read_bytes()
    copy = stored.with_name("copy.ckpt")

    def check(seed):
        data = damaged(original, seed)
        copy.write_bytes(data)
        if data != original:
            with pytest.raises(DamagedFileError):
                read_checkpoint(copy)

    fuzz(st.integers(0, 2**32), amount, check)


def test_a_checkpoint_with_code_in_it_is_refused(stored, capsys):
    write_checkpoint(stored, {"finished": False, "loop": Bomb()})
    with pytest.raises(DamagedFileError, match="something else"):
        read_checkpoint(stored)
    assert tried(["train", *arguments("toy_fedvarp", stored.parent.parent, 3)]) == 2


def spots(tree, path=()):
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from spots(value, (*path, key))


@amounts(20)
def test_checkpoints_with_other_content_are_refused(amount, stored):
    """The checksum is right, but somebody wrote something else."""
    original = read_checkpoint(stored) | {"finished": False}
    (stored.parent.parent / "summary.json").unlink()
    (stored.parent.parent / "metrics.csv").rename(stored.parent / "metrics.csv")
    command = ["train", *arguments("toy_fedvarp", stored.parent.parent, 1)]

    def check(spot, value, drop):
        content = torch.load(io.BytesIO(_bytes(original)), weights_only=True)
        owner = content
        for key in spot[:-1]:
            owner = owner[key]
        if drop:
            del owner[spot[-1]]
        else:
            owner[spot[-1]] = value
        write_checkpoint(stored, content)
        (stored.parent.parent / "summary.json").unlink(missing_ok=True)
        (stored.parent.parent / "metrics.csv").write_bytes((stored.parent / "metrics.csv").read_bytes())
        tried(command)

    fuzz(st.tuples(st.sampled_from(list(spots(original))), junk, st.booleans()), amount, lambda given: check(*given))


def _bytes(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


TRACE = "round,client,num_steps,failure_rate\n1,0,1,0.1\n1,1,2,0.2\n2,0,3,0.0\n2,1,1,0.5\n"


@amounts(30)
def test_damaged_traces_are_read_or_refused(amount, world):
    as_json = json.dumps(list(csv.DictReader(io.StringIO(TRACE))))

    def check(seed):
        name, text = [("trace.csv", TRACE), ("trace.json", as_json)][seed % 2]
        (world / name).write_bytes(damaged(text.encode(), seed))
        try:
            rounds = read_conditions(world / name)
        except (ValueError, OSError) as error:
            assert str(error)  # noqa: PT017
            return
        for num_steps, failure_rates in rounds:
            assert (num_steps >= 1).all()
            assert ((failure_rates >= 0) & (failure_rates < 1)).all()

    fuzz(st.integers(0, 2**32), amount, check)


@amounts(30)
def test_damaged_metrics_are_read_or_refused(amount, stored):
    file = stored.parent.parent / "metrics.csv"
    original = file.read_bytes()

    def check(seed):
        file.write_bytes(damaged(original, seed))
        try:
            rows = read_rounds(file)
        except ValueError as error:
            assert str(file) in str(error)  # noqa: PT017
            return
        assert all(isinstance(row, dict) for row in rows)

    fuzz(st.integers(0, 2**32), amount, check)


@amounts(20)
def test_damaged_data_files_are_read_or_refused(amount, world):
    pictures, labels = (torch.from_numpy(np.zeros(shape, np.uint8)) for shape in ((2, 1, 4, 4), (2,)))
    images = Images(train_images=pictures, train_labels=labels, test_images=pictures, test_labels=labels)
    save_images(images, world / "data.pt", {"source": "made up"}, world)
    original = (world / "data.pt").read_bytes()

    def check(seed):
        (world / "data.pt").write_bytes(damaged(original, seed))
        try:
            found, _ = read_images(world / "data.pt")
        except (ValueError, OSError) as error:
            assert "data.pt" in str(error)  # noqa: PT017
            return
        assert plain(vars(found)) is not None

    fuzz(st.integers(0, 2**32), amount, check)
