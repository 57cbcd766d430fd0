"""String options are ``Literal``s: editors complete them, the parser checks them, and so do the classes themselves."""

import inspect
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from lightning.pytorch import LightningDataModule

from fl_lightning import aggregators, callbacks, data, samplers, solvers
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.server import faults
from fl_lightning.theory.checks import one_of

FREE_TEXT = {"monitor", "path", "root", "folder", "save_dir", "run_dir", "trace", "indices", "reason"}
FREE_TEXT |= {"project", "name", "group", "job_type"}  # of a W&B run
FREE_TEXT |= {"table", "test", "client", "label"}  # files and columns of a table
FREE_TEXT |= {"dataset", "split", "inputs", "revision"}  # of the Hub
NEEDED = {"burst_length": 2.0, "num_clients": 4, "target": 0.5, "bound": 1.0, "clients_per_round": 2, "alpha": 0.1}
NEEDED["sampler"] = samplers.Uniform()
MODULES = (aggregators, callbacks, data, faults, samplers, solvers)


def arguments():
    """Yield every argument of a constructor of a public class, with its type."""
    for module in MODULES:
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for found in (getattr(module, name) for name in names):
            if inspect.isclass(found) and getattr(found.__init__, "__module__", "").startswith("fl_lightning"):
                hints = get_type_hints(
                    found.__init__, localns={"LightningDataModule": LightningDataModule, "DataFrame": object}
                )
                yield from ((found, name, kind) for name, kind in hints.items() if name != "return")


def members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


LITERALS = [
    (found, name, part) for found, name, kind in arguments() for part in members(kind) if get_origin(part) is Literal
]


def test_no_option_is_a_plain_string():
    plain = {(found.__name__, name) for found, name, kind in arguments() if str in members(kind)}
    plain -= {("QuadraticFederation", "targets")}  # numpy's type of anything like an array takes strings too
    assert {name for _, name in plain} == FREE_TEXT | {
        "column",
        "failure_rates",
        "labels",
        "num_steps",
        "sizes",
    }  # keys and files


def test_the_options_were_found():
    assert {"knowledge", "normalize", "unit", "multiplicity", "decay_form", "on_bad_update"} <= {
        n for _, n, _ in LITERALS
    }


def test_unknown_choices_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unit='x' is unknown: use 'a', 'b' or 'c'"):
        one_of("unit", "x", Literal["a", "b", "c"])
    one_of("unit", "b", Literal["a", "b", "c"])


@pytest.mark.parametrize(("found", "name", "choices"), LITERALS, ids=[f"{f.__name__}.{n}" for f, n, _ in LITERALS])
def test_a_class_refuses_an_unknown_choice_in_python(found, name, choices):
    needed = {
        key: NEEDED[key]
        for key, parameter in inspect.signature(found).parameters.items()
        if parameter.default is parameter.empty
    }
    with pytest.raises(ValueError, match=f"{name}='nonsense'.*{get_args(choices)[-1]}"):
        found(**needed | {name: "nonsense"})


def test_the_parser_refuses_an_unknown_choice():
    with pytest.raises(configs.ConfigError, match=r"knowledge[\s\S]*nonsense"):
        building.parse(configs.compose([configs.DEMO]), ["--loop.sampling.sampler.knowledge", "nonsense"])
