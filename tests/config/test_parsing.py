"""Parts of other people are taken whatever their annotations; errors name the method or the value, not inner types."""

import sys

import pytest

from fl_lightning.cli.main import main
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError
from fl_lightning.config.parsing import in_plain_words, make_parser

PARTS = """
import numpy as np

from fl_lightning.aggregators import Aggregator
from fl_lightning.parts.bases import Channel, DataSource, Partition, Schedule
from fl_lightning.samplers import Sampler, SamplerTraits


class Delivered(Channel):
    def __init__(self, share: float = 1.0):
        self.share = share

    def configure_delivery(self, plan, seed):
        return plan.cohort.counts


class DeliveredToo:
    def configure_delivery(self, plan, seed: "int" = 0) -> "list[int]":
        return plan.cohort.counts


class Fixed(Schedule):
    def configure_conditions(self, index, epoch, seed): ...


class Table(DataSource):
    def load(self, seed): ...


class TableToo:
    def load(self, number): ...


class Halves(Partition):
    def split(self, labels, rng): ...


class HalvesToo:
    def split(self, labels, rng): ...


class Choice:
    traits = SamplerTraits()

    def num_draws(self, num_clients):
        return 1

    def start(self, forecast): ...

    def ask(self, profiles, probe, rng): ...

    def expected_cohort(self, profiles): ...

    def configure_cohort(self, expected, rng): ...


class Short(Channel):
    def configure_delivery(self, plan):
        return plan.cohort.counts


class ShortToo:
    def configure_delivery(self, plan):
        return plan.cohort.counts


class Silent(Channel):
    pass


class Nothing:
    pass


class ShortSampler(Sampler):
    def probabilities(self, profiles): ...


class LikeASampler:
    def probabilities(self, profiles, num_draws): ...


class LongAggregator(Aggregator):
    def coefficients(self, profiles, cohort, plan): ...


def make():
    return Delivered()
"""
DIGITS = "--data=fl_lightning.data.Digits"


@pytest.fixture(scope="module", autouse=True)
def strangers_parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "strangers_parts.py").write_text(PARTS)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("strangers_parts", None)


def parse(*overrides):
    return building.parse(configs.compose(["toy_fedavg.yaml"]), list(overrides), ["strangers_parts"])


def test_parts_without_annotations_are_taken_by_base_class_and_by_methods():
    settings = parse(
        "--loop.channel=strangers_parts.Delivered", "--loop.channel.share=0.5", "--loop.schedule=strangers_parts.Fixed",
        "--loop.sampling=strangers_parts.Choice", "--data=strangers_parts.TableToo",
    )  # fmt: skip
    assert settings.loop.channel.as_dict() == {"class_path": "strangers_parts.Delivered", "init_args": {"share": 0.5}}
    made = make_parser().instantiate(settings)
    assert [type(part).__name__ for part in (made.loop.channel, made.loop.schedule, made.loop.sampling, made.data)] == [
        "Delivered", "Fixed", "Choice", "TableToo",
    ]  # fmt: skip
    assert parse("--loop.channel=strangers_parts.DeliveredToo", "--data=strangers_parts.Table").data.class_path
    for name in ("Halves", "HalvesToo"):
        data = parse(DIGITS, f"--data.partition=strangers_parts.{name}").data
        assert data.init_args.partition.class_path == f"strangers_parts.{name}"


DELIVERY = "wanted configure_delivery(plan, seed)"
MISSING = "found no such method"


@pytest.mark.parametrize(
    ("override", "base", "problem"),
    [
        ("loop.channel=Short", "parts.bases.Channel", f"{DELIVERY}, found configure_delivery(plan)"),
        ("loop.channel=ShortToo", "parts.bases.Channel", f"{DELIVERY}, found configure_delivery(plan)"),
        ("loop.channel=Silent", "parts.bases.Channel", f"{DELIVERY}, {MISSING}"),
        ("loop.channel=make", "parts.bases.Channel", f"{DELIVERY}, {MISSING}"),
        (
            "loop.schedule=Nothing",
            "parts.bases.Schedule",
            f"wanted configure_conditions(round_index, steps_per_epoch, seed), {MISSING}",
        ),
        ("data=Nothing", "parts.bases.DataSource", f"wanted load(seed), {MISSING}"),
        ("loop.sampling=Nothing", "parts.bases.Sampling", f"wanted num_draws(num_clients), {MISSING}"),
        (
            "loop.sampling.sampler=ShortSampler",
            "samplers.sampler.Sampler",
            "wanted probabilities(profiles, num_draws), found probabilities(profiles)",
        ),
        (
            "loop.sampling.sampler=LikeASampler",
            "samplers.sampler.Sampler",
            f"wanted coefficients(profiles, probabilities), {MISSING}",
        ),
        (
            "loop.aggregator=LongAggregator",
            "aggregators.aggregator.Aggregator",
            "wanted coefficients(profiles, cohort), found coefficients(profiles, cohort, plan)",
        ),
        (
            "loop.aggregator=Nothing",
            "aggregators.aggregator.Aggregator",
            f"wanted setup(num_clients, weights), {MISSING}",
        ),
    ],
)
@pytest.mark.parametrize("form", ["{}", "{{class_path: {}}}"], ids=["name", "table"])
def test_what_does_not_fit_is_named_with_what_is_wanted_and_found(override, base, problem, form):
    key, _, name = override.partition("=")
    path = f"strangers_parts.{name}"
    with pytest.raises(ConfigError) as caught:
        parse(f"--{key}={form.format(path)}")
    assert str(caught.value) == f"{path} does not fit fl_lightning.{base}: {problem}"


def test_what_is_no_part_of_ours_keeps_the_words_of_the_parser():
    with pytest.raises(ConfigError, match="Nothing does not correspond to a subclass of Callback"):
        parse("--loop.callbacks+=strangers_parts.Nothing")


def test_a_partition_that_does_not_fit_is_named_inside_its_data_set():
    with pytest.raises(ConfigError, match=r"fit fl_lightning\.parts\.bases\.Partition: wanted split\(labels, rng\)"):
        parse(DIGITS, "--data.partition=strangers_parts.Nothing")


def test_an_error_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "untouched.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lie = "Import path untouched.Mine does not correspond to a subclass of Channel"
    for override in (f"--loop.lr={lie}", f"--loop.channel={lie}", f"--loop.batch_size={lie}"):
        with pytest.raises(ConfigError):
            parse(override)
    assert not (tmp_path / "imported").exists()


UNION = (
    "Parser key \"loop.sampling\":\n  Problem with given class_path 'fl_lightning.callbacks.SamplerSelection':\n"
    '    Parser key "clients_per_round":\n      Does not validate against any of the Union subtypes\n'
    "      Subtypes: [<class 'int'>, <class 'float'>]\n      Errors:\n        - Expected a <class 'int'>\n"
    "        - Expected a <class 'float'>\n      Given value type: <class 'str'>\n      Given value: x"
)


def test_a_union_is_a_list_of_what_is_wanted():
    assert in_plain_words(UNION) == "loop.sampling.clients_per_round='x' does not fit: wanted int or float"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "--loop.sampling.clients_per_round=x",
            "loop.sampling.clients_per_round='x' does not fit: wanted int or float",
        ),
        ("--loop.aggregator=5", "loop.aggregator='5' does not fit: wanted Aggregator or null"),
        ("--target_accuracy=[1]", "target_accuracy='[1]' does not fit: wanted float or null"),
        ("--loop.averaging.decay=x", "loop.averaging.decay='x' does not fit: wanted float"),
        ("--loop.schedule.groups=[{share: x}]", "loop.schedule.groups.share='x' does not fit: wanted float"),
        ("--loop.batch_size=1.5", "loop.batch_size"),
    ],
)
def test_what_does_not_fit(override, words):
    with pytest.raises(ConfigError) as caught:
        building.parse(configs.compose(["digits_fedacs.yaml"]), [override])
    assert str(caught.value).startswith(words)
    assert "Union" not in str(caught.value)
    assert "<class" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "override", "said"),
    [
        ("ditto", ["--loop.personal.pull", "-1"], "pull=-1.0 must be a finite number >= 0"),
        ("limitedfedacs", ["--loop.lr_schedule.warm_up", "-1"], "warm_up=-1 must be a number of rounds, 0 or more"),
        ("fedavg", ["--loop.engine.threads", "-3"], "threads=-3 must be at least 1"),
    ],
)
def test_a_part_that_may_be_left_out_has_its_own_words_alone(name, override, said, capsys):
    assert main(["train", "--config", f"toy_{name}.yaml", *override]) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"error: {said}")
