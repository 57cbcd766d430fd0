"""What a part promises or refuses holds when another wraps it: every aggregator in every wrapper, every sampler too."""

import inspect
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from fl_lightning import aggregators, samplers
from fl_lightning.aggregators import Aggregator, SecureSum, ServerAdam, ServerMomentum, ServerOptimizer, ServerYogi
from fl_lightning.asynchronous import ArrivalRates, StaleMean
from fl_lightning.module import FederatedModule
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits, SamplerTraits, check_declared, layers
from fl_lightning.samplers import Consistent, DiversityBased, Importance, Sampler
from fl_lightning.secure.primitives import library
from systems import gaussian_federation, linear_module, small_loop

WRAPPERS = (ServerMomentum, ServerAdam, ServerYogi)
ARGUMENTS = {"SecureSum": {"bound": 100.0, "threshold": 2}}


def concrete(module, base, leave_out):
    """Yield an object of every public subclass that can be made."""
    for name in dir(module):
        kind = getattr(module, name)
        made = inspect.isclass(kind) and issubclass(kind, base) and not issubclass(kind, leave_out)
        if made and kind is not base and kind.__name__ != "RobustAggregator":
            yield pytest.param(kind(**ARGUMENTS.get(name, {})), id=name)


AGGREGATORS = [*concrete(aggregators, Aggregator, ServerOptimizer), pytest.param(StaleMean(), id="StaleMean")]
SAMPLERS = [*concrete(samplers, Sampler, Consistent), pytest.param(ArrivalRates(), id="ArrivalRates")]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("inner", AGGREGATORS)
def test_a_server_optimizer_has_every_member_of_what_it_wraps(inner, wrapper):
    outer = wrapper(inner)
    assert replace(outer.traits, moments=inner.traits.moments, linear=inner.traits.linear) == inner.traits
    assert layers(outer) == [outer, inner]
    own = {"setup", "step", "traits"}  # what an optimizer does itself; the traits were compared above
    for name, member in vars(Aggregator).items():
        if name.startswith("_") or name in own or not callable(member):
            continue
        seen = []
        setattr(inner, name, lambda *arguments, _seen=seen, **named: _seen.append((arguments, named)) or "inner's")
        try:
            wanted = len(inspect.signature(member).parameters) - 1
            assert getattr(outer, name)(*range(wanted)) == "inner's", name
            assert seen == [(tuple(range(wanted)), {})]
        finally:
            delattr(inner, name)


@pytest.mark.parametrize("inner", SAMPLERS)
def test_a_consistent_sampler_has_every_member_of_what_it_wraps(inner):
    outer = Consistent(inner)
    assert replace(outer.traits, consistent=inner.traits.consistent) == inner.traits
    assert type(outer.drawing) is type(inner.drawing)
    for name, member in vars(Sampler).items():
        if name.startswith("_") or name in {"coefficients"} or not callable(member):
            continue
        setattr(inner, name, lambda *arguments, **named: ("inner's", arguments))
        try:
            wanted = tuple(range(len(inspect.signature(member).parameters) - 1))
            assert getattr(outer, name)(*wanted) == ("inner's", wanted), name
        finally:
            delattr(inner, name)


def secure(wrapper):
    return wrapper(SecureSum(bound=1e3, threshold=2))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_hidden_updates_stay_hidden_inside_a_server_optimizer(wrapper):
    with pytest.raises(ValueError, match="SecureSum hides single updates, but DiversityBased draws by what clients"):
        small_loop(DiversityBased(), aggregator=secure(wrapper)).run(linear_module(), gaussian_federation())
    with_means = FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)
    with pytest.raises(ValueError, match="SecureSum protects the weights alone"):
        small_loop(Importance(), aggregator=secure(wrapper)).run(with_means, gaussian_federation())
    memory = wrapper(aggregators.MemorizedMean())
    with pytest.raises(ValueError, match="needs each update"):
        SecureSum(bound=1.0, weighting=memory)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_columns_and_libraries_of_a_secure_sum_are_those_of_the_sum_inside(wrapper, monkeypatch):
    result = small_loop(Importance(), aggregator=secure(wrapper), rounds=2).run(linear_module(), gaussian_federation())
    assert "failed_sums" in result.history[-1]
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ImportError, match=r"pip install -e .\.\[privacy\]"):
        small_loop(Importance(), aggregator=secure(wrapper)).run(linear_module(), gaussian_federation())


def test_models_in_flight_are_kept_inside_a_server_optimizer():
    """Versions that jobs began with were lost when another aggregator stood around."""
    from fl_lightning.asynchronous import AsynchronousSelection

    stale = StaleMean()
    loop = small_loop(
        sampling=AsynchronousSelection(ArrivalRates(), 2), aggregator=ServerMomentum(stale, lr=0.5), rounds=5
    )
    loop.run(linear_module(), gaussian_federation())
    assert stale.versions
    assert all(torch.is_tensor(each) for each in stale.versions.values())


def test_what_others_must_know_has_to_be_declared():
    with pytest.raises(TypeError, match=r"Curious overrides observe, .* traits = SamplerTraits\(learns=True"):

        class Curious(Sampler):
            def observe(self, result): ...

    with pytest.raises(TypeError, match=r"Nosy overrides direction, .* traits = AggregatorTraits\(only_sums=False\)"):

        class Nosy(Aggregator):
            def direction(self, updates, delivered, plan): ...

    class Declared(Aggregator):
        traits = AggregatorTraits(only_sums=False)

        def direction(self, updates, delivered, plan): ...

    check_declared(Declared, ("direction",), "")
    assert SamplerTraits().is_fixed
    assert not SamplerTraits(learns=True).is_fixed
    assert not SamplerTraits(asks="numbers").is_fixed
    assert Handout().gradient_shift(0) is None
