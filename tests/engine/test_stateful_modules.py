"""Modules that remember something: in buffers, which are averaged, or elsewhere, which is warned of."""

import random
from collections import deque
from itertools import count, cycle

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from fl_lightning.parts.memory import encode
from fl_lightning.runs.storage import read_checkpoint, write_checkpoint
from made import made_work
from systems import gaussian_federation, small_loop

pytestmark = pytest.mark.usefixtures("_no_warning_of_large_steps")


class Linear(FederatedModule):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(5, 3), 3)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.factor(batch, batch_idx)

    def factor(self, batch, batch_idx):
        return 1.0


class InPlace(Linear):
    """A running mean of the inputs, as BatchNorm keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.tensor(0))

    def factor(self, batch, batch_idx):
        self.mean.mul_(0.9).add_(0.1 * batch[0].mean(0))
        self.count += 1
        return 1 + self.mean.abs().sum() + self.count


class Assigned(InPlace):
    """The same by assignment."""

    def factor(self, batch, batch_idx):
        self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(0)
        self.count = self.count + 1
        return 1 + self.mean.abs().sum() + self.count


@pytest.mark.parametrize("mode", ["auto", "threads", "sequential"])
def test_a_buffer_updated_by_assignment_is_one_updated_in_place(mode, caplog):
    engines = [Engine(mode, threads=2) for _ in range(2)]
    loops = [small_loop(engine=engine) for engine in engines]
    states = [loop.run(kind(), gaussian_federation()) for loop, kind in zip(loops, (InPlace, Assigned), strict=True)]
    assert engines[0].choice.mode == engines[1].choice.mode == ("threads" if mode == "auto" else mode)
    assert torch.allclose(states[0].weights, states[1].weights, rtol=1e-6)
    assert torch.allclose(states[0].buffers, states[1].buffers, rtol=1e-6)
    assert states[1].buffers.abs().sum() > 0.1
    assert torch.equal(loops[1].module.mean, states[1].buffers)
    assert not caplog.records


def test_assigned_buffers_do_not_leak_between_clients():
    loop = small_loop(engine=Engine("threads", threads=2))
    loop.run(Assigned(), gaussian_federation())
    work = made_work(9, np.full(6, 3), 0.1)
    both = loop.engine.work(loop.state, np.array([1, 4]), work)
    alone = loop.engine.work(loop.state, np.array([4]), work)
    assert torch.equal(both.buffers[1], alone.buffers[0])
    assert torch.equal(both.deltas[1], alone.deltas[0])
    metrics, _ = loop.engine.evaluate(loop.state)
    assert metrics["test_accuracy"] > 1 / 3  # better than guessing
    assert torch.equal(loop.module.mean, loop.state.buffers)


def test_a_buffer_must_keep_its_shape():
    class Growing(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def factor(self, batch, batch_idx):
            self.seen = torch.cat([self.seen, torch.ones(1)])
            return 1.0

    with pytest.raises(ValueError, match=r"Growing replaced its buffer 'seen' of shape \(1,\)"):
        small_loop().run(Growing(), gaussian_federation())


def test_a_parameter_must_be_changed_in_place():
    class Clipped(Linear):
        def factor(self, batch, batch_idx):
            self.network.weight.data = self.network.weight.data.clamp(-1, 1)
            return 1.0

    with pytest.raises(ValueError, match=r"replaces the data of parameter 'network.weight'.*in place"):
        small_loop().run(Clipped(), gaussian_federation())


GLOBAL_HISTORY = []


class Counter(Linear):
    steps = 0

    def factor(self, batch, batch_idx):
        self.steps += 1
        return 1 + 0.1 * (self.steps % 3)


class Late(Linear):
    """Shows its state from the second step of a client on."""

    def __init__(self) -> None:
        super().__init__()
        self.late = [0]

    def factor(self, batch, batch_idx):
        if batch_idx > 0:
            self.late[0] += 1
        return 1 + 0.1 * (self.late[0] % 3)


class Queue(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.queue = deque([0.0] * 3, maxlen=3)

    def factor(self, batch, batch_idx):
        self.queue.append(float(batch[0].mean()))
        return 1 + abs(sum(self.queue))


class Nested(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.helper = type("Helper", (), {})()
        self.helper.inner = {"history": [{"numbers": np.zeros(2)}]}

    def factor(self, batch, batch_idx):
        self.helper.inner["history"][0]["numbers"] += 1
        return 1.0


class NumpyGenerator(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def factor(self, batch, batch_idx):
        return 1 + self.rng.random()


class PythonGenerator(NumpyGenerator):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)


class TorchGenerator(NumpyGenerator):
    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator()

    def factor(self, batch, batch_idx):
        return 1 + torch.rand((), generator=self.rng)


class Iterators(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = count()

    def factor(self, batch, batch_idx):
        return 1 + 0.1 * (next(self.numbers) % 3)


class Hidden(Linear):
    """No attribute shows where a cycle stands; its gradients do."""

    def __init__(self) -> None:
        super().__init__()
        self.cycle = cycle([1.0, 2.0, 3.0, 4.0, 5.0])

    def factor(self, batch, batch_idx):
        return next(self.cycle)


class Uncopied(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.cycle = (number for number in count())

    def factor(self, batch, batch_idx):
        return 1 + 0.1 * (next(self.cycle) % 3)


class GlobalVariable(Linear):
    def factor(self, batch, batch_idx):
        GLOBAL_HISTORY.append(1)
        return 1.0


class ClassAttribute(Linear):
    total = 0

    def factor(self, batch, batch_idx):
        type(self).total += 1
        return 1.0


class Closure(Linear):
    def __init__(self) -> None:
        super().__init__()
        seen = []
        self.note = lambda value: seen.append(value)

    def factor(self, batch, batch_idx):
        self.note(1)
        return 1.0


class Teacher(Linear):
    """A frozen copy that follows slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(5, 3).requires_grad_(False)

    def factor(self, batch, batch_idx):
        self.teacher.weight.data.lerp_(self.network.weight.data, 0.1)
        return 1.0


class LateBuffer(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", None)

    def factor(self, batch, batch_idx):
        self.memory = batch[0].mean(0)
        return 1.0


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Counter, "steps"),
        (Late, "late"),
        (Queue, "queue"),
        (Nested, "helper.inner"),
        (NumpyGenerator, "rng"),
        (PythonGenerator, "rng"),
        (TorchGenerator, "rng"),
        (Iterators, "numbers"),
        (Hidden, "another gradient"),
        (Uncopied, "cannot be copied"),
        (GlobalVariable, "global GLOBAL_HISTORY"),
        (ClassAttribute, "ClassAttribute.total"),
        (Closure, "note uses seen"),
        (Teacher, "teacher.weight"),
        (LateBuffer, "memory"),
    ],
)
def test_state_outside_the_model_trains_sequentially_and_warns_once(kind, named, caplog):
    for mode in ("auto", "sequential"):
        caplog.clear()
        loop = small_loop(engine=Engine(mode, threads=2))
        loop.run(kind(), gaussian_federation())
        assert loop.engine.choice.mode == "sequential"
        (record,) = caplog.records
        assert f"{kind.__name__} keeps state outside its parameters and buffers" in record.message
        assert named in record.message
        assert "resume and several processes are not exact" in record.message
    with pytest.raises(ValueError, match="impossible here"):
        small_loop(engine=Engine("threads", threads=2)).run(kind(), gaussian_federation())


class TrainAccuracy(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.train_accuracy = MulticlassAccuracy(3)

    def factor(self, batch, batch_idx):
        self.train_accuracy(self(batch[0]), batch[1])
        return 1.0


class Plain(Linear):
    """Has attributes of all kinds and changes none."""

    table = {"a": float("nan")}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 3})
        self.settings, self.scale, self.rng = {"b": [1.0, float("nan")]}, torch.ones(3), np.random.default_rng(0)
        self.itself = [self]


@pytest.mark.parametrize(("kind", "mode"), [(TrainAccuracy, "sequential"), (Plain, "threads"), (Linear, "threads")])
def test_what_holds_no_state_of_the_training_is_not_warned_of(kind, mode, caplog):
    loop = small_loop(engine=Engine(threads=2))
    loop.run(kind(), gaussian_federation())
    assert loop.engine.choice.mode == mode
    assert not caplog.records


class Saving(NumpyGenerator):
    """Saves its state as Lightning has it."""

    def on_save_checkpoint(self, checkpoint):
        assert set(checkpoint["state_dict"]) >= {"network.weight", "network.bias"}
        checkpoint["rng"] = self.rng.bit_generator.state

    def on_load_checkpoint(self, checkpoint):
        assert torch.equal(checkpoint["state_dict"]["network.weight"], self.network.weight)
        self.rng.bit_generator.state = checkpoint["rng"]


@pytest.mark.parametrize(("kind", "exact"), [(Saving, True), (NumpyGenerator, False)])
def test_the_hooks_of_checkpoints_make_resume_exact(kind, exact, caplog, tmp_path):
    whole = small_loop(rounds=4).run(kind(), gaussian_federation())
    half = small_loop(rounds=2)
    half.run(kind(), gaussian_federation())
    write_checkpoint(tmp_path / "half.ckpt", {"loop": half.state_dict()})
    resumed = small_loop(rounds=4).run(
        kind(), gaussian_federation(), resume_from=read_checkpoint(tmp_path / "half.ckpt")["loop"]
    )
    assert torch.equal(whole.weights, resumed.weights) == exact
    assert ("only as far as Saving.on_save_checkpoint" in caplog.text) == exact


def test_what_a_checkpoint_cannot_hold_is_refused():
    class Wrong(NumpyGenerator):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["rng"] = self.rng

    loop = small_loop(rounds=1)
    loop.run(Wrong(), gaussian_federation())
    with pytest.raises(ValueError, match=r"Wrong.on_save_checkpoint .*'rng'.*Generator"):
        loop.state_dict()


def test_a_module_without_hooks_adds_nothing_to_a_checkpoint():
    loop = small_loop(rounds=1)
    loop.run(Linear(), gaussian_federation())
    assert "module" not in loop.state_dict()
    assert encode(loop.state_dict())
