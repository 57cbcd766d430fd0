"""Mutated answers of a node and mutated questions of a server: no code, no traceback, no writes, no model that is lost.

``pytest -m slow tests/flower/test_fuzz_answers.py`` makes 2,000 of each.
"""

import copy
import os
import pickle
import random

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Array, Context, RecordDict
from fuzzing import time_limit

from deployed import OBSERVED, config, deployed, made_grid, weights
from fl_lightning.flower.client_app import app
from fl_lightning.flower.messages import TRAIN

EVIL = 1003  # the node of client 6
SIZES = ["few", pytest.param("many", marks=pytest.mark.slow)]
VALUES = (
    0,
    -1,
    2**62,
    -(2**62),
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 10_000,
    "../../x",
    b"\x00" * 9,
    True,
    [1, 2],
)


class Code:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def mutate(rng, content, canary):
    """Change a record of a message in one to three places."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        names = list(content)
        record = content[rng.choice(names)] if names else None
        keys = list(record) if record is not None else []
        kind = rng.choice(["value", "array", "gone", "new", "record"])
        if kind == "record" and names:
            del content[rng.choice(names)]
        elif not keys:
            continue
        elif kind == "gone":
            del record[rng.choice(keys)]
        else:
            key = rng.choice(keys) if kind != "new" else rng.choice(["__class__", "delta", "", "client", "x" * 300])
            try:
                old = record.get(key)
                record[key] = array(rng, old, canary) if isinstance(old, Array) else rng.choice(VALUES)
            except (TypeError, ValueError):
                pass  # what Flower itself does not pack cannot be sent


def array(rng, old, canary):
    """Return an array like another, with one thing wrong."""
    data, shape, dtype, kind = old.data, tuple(old.shape), old.dtype, old.stype
    wrong = rng.choice(["cut", "bytes", "flip", "shape", "dtype", "pickle", "huge", "nan"])
    if wrong == "cut":
        data = data[: rng.randrange(len(data) + 1)]
    elif wrong == "bytes":
        data = rng.randbytes(rng.choice([0, 7, 1000]))
    elif wrong == "flip" and data:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    elif wrong == "shape":
        shape = rng.choice([(), (0,), (-1,), (2**40,), (3, 3), (*shape, 1)])
    elif wrong == "dtype":
        dtype = rng.choice(["object", "float64", "int8", "nonsense", "V8"])
    elif wrong == "pickle":
        data, kind = pickle.dumps(Code(canary)), rng.choice(["pickle", kind])
    elif wrong == "huge":
        return Array(np.full(np.prod(shape, dtype=int), 255, dtype=np.uint8))
    else:
        return Array(np.full(max(1, int(np.prod(shape)) // 4), np.nan, dtype=np.float32).view(np.uint8))
    return Array(dtype=dtype, shape=shape, stype=kind, data=data)


def changed_files(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("amount", SIZES)
def test_mutated_answers_of_a_node_do_no_harm(amount, tmp_path):
    number = 12 if amount == "few" else 2000
    merged = config("full", tmp_path / "run", rounds=number, evaluate_every=number, **OBSERVED)
    merged["loop"]["schedule"]["init_args"]["num_steps"] = 1
    grid, canary = made_grid(merged, tmp_path), tmp_path / "RAN"

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == TRAIN:
            mutate(random.Random(message.metadata.group_id), reply.content, canary)
        return reply

    grid.answer[EVIL] = answer
    run = deployed(grid, merged, max_steps=50)
    run.execute()
    assert run.loop.round_index == number
    assert torch.isfinite(weights(run)).all()
    assert not canary.exists()


@pytest.mark.parametrize("amount", SIZES)
def test_mutated_questions_of_a_server_do_no_harm(amount, tmp_path):
    merged = config("full", tmp_path / "run", rounds=2, **OBSERVED)
    grid, asked, canary = made_grid(merged, tmp_path), [], tmp_path / "RAN"

    def answer(message, context):
        asked.append((copy.deepcopy(message), context))
        return app(message, context)

    grid.answer[EVIL] = answer
    deployed(grid, merged, max_steps=50).execute()
    before = changed_files(tmp_path)
    tracebacks = []
    for seed in range(40 if amount == "few" else 2000):
        rng = random.Random(seed)
        message, context = rng.choice(asked)
        message = copy.deepcopy(message)
        mutate(rng, message.content, canary)
        fresh = Context(context.run_id, context.node_id, context.node_config, RecordDict(), {})
        try:
            with time_limit(10):
                app(message, fresh)
        except ValueError as error:  # what Flower makes an error reply of
            if "\n" in str(error):
                tracebacks.append((seed, str(error)))
        except Exception as error:
            tracebacks.append((seed, repr(error)))
    assert tracebacks == []
    assert not canary.exists()
    assert changed_files(tmp_path) == before
