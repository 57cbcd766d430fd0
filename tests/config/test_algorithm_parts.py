"""The shipped algorithms in Python are those of the command line."""

import pytest

import fl_lightning
from fl_lightning.config import algorithm_parts as parts
from fl_lightning.config import compose as configs
from fl_lightning.config.algorithm_parts import algorithm
from fl_lightning.samplers import Sampler
from fl_lightning.uploads import Uploads

NAMES = configs.names("algorithms")


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
    return type(value).__name__, {name: described(each) for name, each in sorted(vars(value).items())}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_the_parts_of_the_config(name):
    merged = configs.merge(configs.compose(["digits.yaml"]), configs.read(configs.FOLDER / f"algorithms/{name}.yaml"))
    wanted = parts.configured_algorithm(merged, [])
    made = algorithm(name)
    for key in parts.ALGORITHM:
        assert described(getattr(made, key)) == described(getattr(wanted, key))


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
        ({"name": "fedaccs"}, "'fedaccs' is unknown: use one of cafedavg, .*fedacs, "),
        ({"name": "fedacs", "settings": {"lr": 0.1}}, "'lr' is no part of an algorithm"),
        ({"name": "fedacs", "settings": {"solver.proximall": 1}}, "'proximall' is not accepted"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        algorithm(**arguments)
