"""Each part stands at the keys whose type it has, under the name of the outermost one."""

from typing import Literal

import pytest

from fl_lightning.callbacks import RayleighOutage
from fl_lightning.config import catalogue, keys
from fl_lightning.data import ByColumn
from fl_lightning.engine import Engine
from fl_lightning.parts.bases import DataSource, Partition
from fl_lightning.samplers import Sampler, Systematic, Uniform
from fl_lightning.samplers.sampler import Drawing
from fl_lightning.system import DayNight


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("radio", {"RayleighOutage"}),
        ("availability", {"AvailabilityTrace", "DayNight", "OnOff"}),
        ("seconds_per_step", {"Between", "LogNormal", "Share"}),
        ("sampling", {"AsynchronousSelection", "SamplerSelection"}),
    ],
)
def test_the_parts_of_a_kind(kind, names):
    assert {part.name for part in catalogue.stored().of_kind(kind)} == names


def test_neither_a_base_nor_a_narrower_kind_is_listed():
    known = catalogue.stored()
    assert known.part("fl_lightning.samplers.Sampler").kinds == ()
    assert known.part("fl_lightning.module.FederatedModule").kinds == ("model",)


@pytest.mark.parametrize(
    ("part", "base", "fits"),
    [
        (Uniform, Sampler, True),
        (Systematic, Drawing, True),  # by its method
        (Uniform, Drawing, False),
        (ByColumn, Partition, True),
        (Engine, DataSource, False),  # which loads something else
        (DayNight, RayleighOutage, False),  # which has the same methods by chance
    ],
)
def test_what_fits(part, base, fits):
    assert keys._fits(part, base) is fits


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "int | None"),
        (Literal["a", 2] | float, "a | 2 | float"),
        (Literal["a"] | Literal["a", "b"], "a | b"),
        (dict[str, tuple[int, ...]], "dict[str, tuple[int, ...]]"),
    ],
)
def test_types_in_words(hint, words):
    assert keys._in_words(hint) == words


def test_a_choice_that_two_types_have_is_one():
    (precision,) = (key for key in catalogue.stored().keys if key.name == "fabric.precision")
    assert len(set(precision.choices)) == len(precision.choices) > 5
