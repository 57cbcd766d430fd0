"""The shipped algorithms in Python are those of the command line."""

from dataclasses import fields
from importlib import import_module

import pytest

import fl_lightning
from fl_lightning.algorithms import Algorithm
from fl_lightning.config import algorithm_parts as parts
from fl_lightning.config import compose as configs
from fl_lightning.config.algorithm_parts import algorithm
from fl_lightning.samplers import Importance, Sampler, Systematic
from fl_lightning.uploads import Uploads

NAMES = configs.names("algorithms")
FIELDS = [field.name for field in fields(Algorithm)]
UNSAID = {
    "sampling": "fl_lightning.callbacks.SamplerSelection",
    "solver": "fl_lightning.solvers.SGD",
    "calibration": "fl_lightning.server.Calibration",
}


def described(value):
    """Return an object as the names and settings it is made of."""
    if isinstance(value, int | float | str | bool | None):
        return value
    if isinstance(value, list | tuple | dict):
        return [described(each) for each in (value.values() if isinstance(value, dict) else value)]
    if isinstance(value, Uploads):
        return described(value.steps)
    if not hasattr(value, "__dict__"):
        return repr(value)
    settings = {name: each for name, each in sorted(vars(value).items()) if name != "_probed"}  # which runs fill
    return type(value).__name__, {name: described(each) for name, each in settings.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_the_parts_of_the_config(name):
    merged = configs.merge(configs.compose(["digits.yaml"]), configs.read(configs.FOLDER / f"algorithms/{name}.yaml"))
    wanted = parts.configured_algorithm(merged, [])
    made = algorithm(name)
    for key in FIELDS:
        assert described(getattr(made, key)) == described(getattr(wanted, key))


def in_python(key, said):
    """Return a part as one writes it in Python: what is not said is left to the class."""
    if not isinstance(said, dict) or not said.keys() & {"class_path", "init_args"}:
        return [in_python("", each) for each in said] if isinstance(said, list) else said
    home, _, name = said.get("class_path", UNSAID.get(key)).rpartition(".")
    arguments = {name: in_python("", value) for name, value in said.get("init_args", {}).items()}
    if key == "sampling":
        arguments = {"sampler": Importance()} | arguments
    return getattr(import_module(home), name)(**arguments)


@pytest.mark.parametrize("name", NAMES)
def test_parts_made_in_python_are_those_of_the_preset(name):
    file = configs.read(configs.FOLDER / f"algorithms/{name}.yaml").get("loop", {})
    given = {key: in_python(key, file.get(key, {"init_args": {}})) for key in UNSAID} | {
        key: in_python(key, value) for key, value in file.items()
    }
    made, preset = Algorithm(**given), algorithm(name)
    for key in FIELDS:
        assert described(getattr(made, key)) == described(getattr(preset, key))


def test_nothing_said_in_python_is_the_base():
    made, base = Algorithm(), algorithm("fedavg")
    assert described(vars(made.sampling)) == described(vars(base.sampling))
    assert isinstance(made.sampling.way_of_drawing, Systematic)
    for key in set(FIELDS) - {"sampling"}:
        assert described(getattr(made, key)) == described(getattr(base, key))


def test_each_call_makes_new_parts():
    first, second = algorithm("scaffold"), algorithm("scaffold")
    parts_of = [
        [getattr(made, key) for key in ("sampling", "aggregator", "solver", "uploads")] for made in (first, second)
    ]
    assert all(one is not other for one, other in zip(*parts_of, strict=True))
    assert first.sampling.sampler is not second.sampling.sampler


def test_settings_replace_those_of_the_file():
    made = fl_lightning.algorithm("fedprox", clients_per_round=4, settings={"solver.proximal": 0.25})
    assert (made.sampling.clients_per_round, made.solver.proximal) == (4, 0.25)
    deep = algorithm("fedacs", settings={"sampling.sampler.knowledge": "estimated"})
    assert deep.sampling.sampler.knowledge == "estimated"

    class Mine(Sampler):
        pass

    mine = Mine()
    assert algorithm("fedavg", settings={"sampling.sampler": mine}).sampling.sampler is mine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "fedaccs"}, "'fedaccs' is unknown: use one of ace, .*fedacs, "),
        ({"name": "fedacs", "settings": {"lr": 0.1}}, "'lr' is no part of an algorithm"),
        ({"name": "fedacs", "settings": {"solver.proximall": 1}}, "'proximall' is not accepted"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        algorithm(**arguments)
