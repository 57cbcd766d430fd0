"""Complaints of the parser, as it really words them, without the inner workings of types."""

import pytest

from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError
from fl_lightning.config.errors import in_plain_words

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
