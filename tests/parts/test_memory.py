"""What a part names as its memory comes back from a file as it was, and nothing else is taken for it."""

import io
from collections import Counter
from enum import IntEnum

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning import samplers
from fl_lightning.aggregators import AnonymousMean, EchoedInnovations, MemorizedMean, PostponedBroadcast, ServerAdam
from fl_lightning.parts.memory import Remembers


class Part(Remembers):
    memory = ("_value",)

    def __init__(self, value):
        self._value = value


class Level(IntEnum):
    LOW = 1


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def there_and_back(value, present):
    part = Part(present)
    part.load_state_dict(through_file(Part(value).state_dict()))
    return part._value


def same(first, second):
    if isinstance(first, np.ndarray | torch.Tensor):
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        return type(first) is type(second) and bool((first == second).all())
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        return all(same(entry, second[key]) for key, entry in first.items())
    if isinstance(first, list | tuple):
        return type(first) is type(second) and all(map(same, first, second)) and len(first) == len(second)
    return type(first) is type(second) and first == second


VALUES = {
    "float tensor": torch.tensor([[1.5, -2.0]]),
    "integer tensor": torch.arange(3),
    "bool tensor": torch.tensor([True, False]),
    "scalar tensor": torch.tensor(2.5, dtype=torch.float64),
    "empty tensor": torch.empty(0, 4),
    "float array": np.array([[0.1, np.inf], [-0.0, 3.0]]),
    "float32 array": np.array([0.1], dtype=np.float32),
    "integer array": np.array([1, -(2**60)]),
    "bool array": np.array([True, False, True]),
    "empty array": np.empty((0, 3), dtype=np.int64),
    "backward array": np.arange(4.0)[::-1],
    "int": 3,
    "large int": 10**30,
    "float": 0.1,
    "infinity": float("-inf"),
    "bool": True,
    "string": "id",
    "none": None,
    "dict": {"rounds": 3, 4: None, (1, "a"): {"deep": [1.5]}},
    "dict of tensors": {"mean": torch.ones(2), "square": torch.zeros(2)},
    "list": [1, "a", None],
    "list of arrays": [np.arange(2), torch.arange(2.0)],
    "tuple": (1, (2.0, "b")),
    "set": {("loss", 3), ("rejected", 4)},
    "empty containers": [{}, [], (), set()],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_each_kind_comes_back_in_place_of_its_like_and_of_nothing(value):
    assert same(there_and_back(value, value), value)
    assert same(there_and_back(value, None), value)


def test_numbers_of_numpy_come_back_as_plain_numbers():
    for value in (np.float64(0.5), np.int64(3), np.bool_(True)):
        assert same(there_and_back(value, value), value.item())
    assert there_and_back({np.int64(2): np.float32(0.5)}, None) == {2: 0.5}


@pytest.mark.parametrize("value", [Counter("a"), Level.LOW, object(), np.array(["a"]), [Part(1)], lambda: 0, np.str_])
def test_what_a_checkpoint_could_not_give_back_is_refused_when_it_is_saved(value):
    with pytest.raises(TypeError, match=r"Part\._value.* holds a .* which a checkpoint cannot keep"):
        Part(value).state_dict()
    with pytest.raises(TypeError, match=r"Part\._value\['deep'\] holds a"):
        Part({"deep": value}).state_dict()


def test_what_is_saved_and_what_comes_back_are_copies():
    part = Part({"tensor": torch.zeros(2), "array": np.zeros(2), "list": [0]})
    state = part.state_dict()
    part._value["tensor"] += 1
    part._value["array"] += 1
    part._value["list"].append(1)
    expected = {"tensor": torch.zeros(2), "array": np.zeros(2), "list": [0]}
    first, second = Part(None), Part(None)
    first.load_state_dict(state)
    assert same(first._value, expected)
    first._value["tensor"] += 2
    first._value["array"] += 2
    second.load_state_dict(state)
    assert same(second._value, expected)


def test_what_comes_back_is_not_written_over_what_others_may_share():
    weights, point = torch.zeros(2), np.zeros(2)
    tensor, array = Part(weights), Part(point)
    tensor.load_state_dict(Part(torch.ones(2)).state_dict())
    array.load_state_dict(Part(np.ones(2)).state_dict())
    assert (tensor._value == 1).all()
    assert (array._value == 1).all()
    assert not weights.any()
    assert not point.any()


def test_tensors_take_the_type_of_those_they_replace():
    assert there_and_back(torch.ones(2, dtype=torch.float64), torch.zeros(2)).dtype == torch.float32
    assert there_and_back(np.ones(2, dtype=np.float32), np.zeros(2)).dtype == np.float64
    assert there_and_back(torch.ones(2, dtype=torch.float64), torch.empty(0)).dtype == torch.float64  # learned later
    moments = there_and_back({"mean": torch.ones(2, dtype=torch.float64)}, {"mean": torch.zeros(2)})
    assert moments["mean"].dtype == torch.float32
    assert there_and_back(torch.ones(2), torch.zeros(2, device="meta")).device.type == "meta"


def test_nothing_learned_yet_fits_any_shape():
    assert same(there_and_back(np.ones((2, 3)), np.empty(0)), np.ones((2, 3)))
    assert same(there_and_back(np.empty(0), np.ones((2, 3))), np.empty(0))
    assert same(there_and_back(torch.ones(2, 3), torch.empty(0, 0)), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("value", "present", "said"),
    [
        (torch.ones(1, 2), torch.ones(3, 2), r"shape \(1, 2\) .*\(3, 2\)"),  # copy_ would repeat it
        (np.ones(3), np.ones(4), r"shape \(3,\) .*\(4,\)"),
        (torch.ones(2), torch.zeros(2, dtype=torch.bool), r"torch\.float32 .* torch\.bool are wanted"),
        (np.ones(2), np.zeros(2, dtype=np.int64), r"torch\.float64 .* torch\.int64 are wanted"),
        (0.5, torch.ones(1), "is a number in it, but a tensor is wanted"),
        (np.ones(1), torch.ones(1), "is a numpy array in it, but a tensor is wanted"),
        ("abc", 1.0, "is a str in it, but a number is wanted"),
        ([1], {}, "is a list in it, but a dict is wanted"),
        ({"mean": torch.ones(2)}, {"mean": torch.ones(3)}, r"Part\._value\['mean'\] has shape"),
        ({"velocity": 1}, {"mean": torch.ones(2)}, r"Part\._value lacks 'mean', it holds 'velocity'"),
    ],
)
def test_what_does_not_fit_is_refused(value, present, said):
    with pytest.raises(ValueError, match=f"^the checkpoint does not fit.*{said}"):
        there_and_back(value, present)


def test_the_memory_of_another_part_is_refused():
    weights = torch.zeros(3)
    larger, smaller, none = EchoedInnovations(), PostponedBroadcast(), AnonymousMean()
    for part in (larger, smaller, none):
        part.setup(2, weights)
    with pytest.raises(ValueError, match="does not fit PostponedBroadcast: it holds 'last_arrival', 'models'"):
        smaller.load_state_dict(larger.state_dict())
    with pytest.raises(ValueError, match=r"does not fit EchoedInnovations: .* instead of 'last_arrival', 'models'"):
        larger.load_state_dict(smaller.state_dict())
    with pytest.raises(ValueError, match="it holds 'models', 'synchronised' instead of nothing:"):
        none.load_state_dict(smaller.state_dict())
    assert none.state_dict() == {}


def test_parts_inside_of_parts_keep_their_own_memory():
    def made(value):
        optimizer = ServerAdam(MemorizedMean())
        optimizer.setup(2, torch.zeros(3))
        optimizer.aggregator.last_updates.put(np.arange(2), torch.full((2, 3), value))
        optimizer.moments["mean"] += value
        return optimizer

    first, second = made(2.0), made(0.0)
    inner = second.aggregator
    state = first.state_dict()
    assert state.keys() == {"moments", "aggregator"}
    second.load_state_dict(through_file(state))
    assert second.aggregator is inner
    assert same(second.state_dict(), state)
    sampler = samplers.Consistent(samplers.WorkAware(use_norms=True))
    sampler.sampler._last_norms.norms = np.array([1.0, 2.0])
    other = samplers.Consistent(samplers.WorkAware(use_norms=True))
    other.load_state_dict(through_file(sampler.state_dict()))
    assert same(other.sampler._last_norms.norms, np.array([1.0, 2.0]))


def test_parts_of_other_libraries_are_copied_too():
    first, second = Part(nn.Linear(2, 1)), Part(nn.Linear(2, 1))
    state = first.state_dict()
    wanted = first._value.weight.detach().clone()
    with torch.no_grad():
        first._value.weight += 1
    second.load_state_dict(through_file(state))
    assert torch.equal(second._value.weight, wanted)


def test_a_class_adds_to_the_memory_of_its_bases():
    class Counting(MemorizedMean):
        memory = ("num_calls",)
        num_calls = 0

    class Renamed(Counting):
        pass

    assert Renamed.memory == ("last_updates", "last_accumulation", "num_calls")
    part = Renamed()
    part.setup(1, torch.zeros(1))
    assert part.state_dict().keys() == {"last_updates", "last_accumulation", "num_calls"}


def test_an_attribute_of_an_object_may_be_called_memory():
    part = Part(1)
    part.memory = torch.zeros(2)
    assert part.state_dict() == {"value": 1}


@pytest.mark.parametrize(
    ("names", "said"),
    [(("counts"), "must be a tuple"), (["counts"], "must be a tuple"), ((1,), "a tuple"), (("_a", "a"), "underscore")],
)
def test_wrong_names_are_refused_where_the_class_is_written(names, said):
    with pytest.raises(TypeError, match=said):
        type("Wrong", (Remembers,), {"memory": names})


def test_names_that_are_not_there_are_named():
    with pytest.raises(AttributeError, match="last_updates"):
        MemorizedMean().state_dict()
