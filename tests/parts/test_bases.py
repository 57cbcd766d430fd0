"""Parts of other people: what counts as one, and what is said where it does not fit."""

from types import SimpleNamespace

import numpy as np
import pytest

from fl_lightning import callbacks, data
from fl_lightning.parts import bases as parts
from fl_lightning.types import Conditions
from systems import gaussian_federation, linear_module, small_loop

OURS = {
    parts.Schedule: [callbacks.HeterogeneitySchedule],
    parts.Channel: [
        callbacks.ChannelFailures,
        callbacks.GilbertElliott,
        callbacks.GroupFailures,
        callbacks.TraceChannel,
    ],
    parts.DataSource: [data.Digits, data.MNIST, data.CIFAR10, data.CINIC10, data.Quadratic, data.FromDataModule],
    parts.Partition: [data.IID, data.Dirichlet, data.Shards, data.OneClassPerClient, data.GivenIndices],
}


class Patient:
    """A schedule of somebody who has never seen our base class, with names and no annotations of its own."""

    def configure_conditions(self, number, epoch, seed, more=None):
        return Conditions(np.full(len(epoch), 2), np.zeros(len(epoch)))


def test_our_own_parts_subclass_the_bases():
    for base, kinds in OURS.items():
        for kind in kinds:
            assert base in kind.__mro__
            assert parts.misfit(kind, base) is None


def test_a_class_with_the_methods_counts_as_a_subclass():
    assert issubclass(Patient, parts.Schedule)
    assert isinstance(Patient(), parts.Schedule)
    assert not issubclass(Patient, parts.Channel)
    assert not issubclass(Patient, callbacks.HeterogeneitySchedule)


def test_a_text_is_no_partition_though_it_can_be_split():
    assert not isinstance("fl_lightning.data.IID", parts.Partition)


def test_a_base_without_its_method_cannot_be_made():
    class Silent(parts.Channel):
        pass

    with pytest.raises(TypeError, match="configure_delivery"):
        Silent()


def test_the_loop_takes_any_object_with_the_methods():
    channel = SimpleNamespace(configure_delivery=lambda plan, seed: plan.cohort.counts)
    loop = small_loop(schedule=Patient(), channel=channel, rounds=2, callbacks=[])
    loop.run(linear_module(), gaussian_federation())
    assert loop.round_index == 2


class Late:
    def configure_delivery(self, plan):
        return plan.cohort.counts


@pytest.mark.parametrize(
    ("argument", "part", "message"),
    [
        (
            "schedule",
            Late(),
            "schedule=Late does not fit fl_lightning.parts.bases.Schedule: wanted "
            "configure_conditions(round_index, steps_per_epoch, seed), found no such method",
        ),
        (
            "channel",
            Late(),
            "channel=Late does not fit fl_lightning.parts.bases.Channel: wanted configure_delivery(plan, seed), "
            "found configure_delivery(plan)",
        ),
        ("channel", callbacks.ChannelFailures, "channel=ChannelFailures is a class: give an object of it, "),
        ("sampling", Late(), "Sampling: wanted num_draws(num_clients), found no such method"),
        ("channel", 3, "channel=int does not fit fl_lightning.parts.bases.Channel: wanted configure_delivery("),
    ],
)
def test_the_loop_names_the_method_that_does_not_fit(argument, part, message):
    with pytest.raises(TypeError) as caught:
        small_loop(**{argument: part})
    assert message in str(caught.value)


class Bare:
    sizes = np.array([3, 3])

    def batch(self, client, indices):
        raise AssertionError("nothing may be asked of it")


class Sizeless:
    def batch(self, client, indices): ...
    def test_batches(self, batch_size): ...
    def measure(self, weights, plan): ...


def test_a_federation_that_lacks_something_is_refused_before_the_first_round():
    for federation, wanted in ((Bare(), r"test_batches\(batch_size\), found no"), (Sizeless(), "the property sizes")):
        with pytest.raises(
            TypeError, match=f"federation=.* does not fit fl_lightning.parts.protocols.Federation: wanted {wanted}"
        ):
            small_loop().run(linear_module(), federation)


def test_static_methods_classes_and_builtins_are_read_right():
    class Fixed:
        @staticmethod
        def split(labels, rng):
            return [labels]

    class Own:
        @classmethod
        def split(cls, labels, rng):
            return [labels]

    class Wide:
        def split(self, *arguments):
            return list(arguments)

    class Keyword:
        def split(self, labels, *, rng):
            return [labels]

    for kind in (Fixed, Own, Wide):
        assert parts.misfit(kind, parts.Partition) is None
        assert parts.misfit(kind(), parts.Partition) is None
    assert parts.misfit(Keyword, parts.Partition) == "wanted split(labels, rng), found split(labels, *, rng)"
    assert parts.misfit(SimpleNamespace(split=3), parts.Partition) == "wanted split(labels, rng), found no such method"
