"""What a promise is combined with: every wrapper, aggregator, sampler, upload step, clock, channel and engine.

A combination takes the settings of a loop and returns them with one part more.
"""

import inspect
from collections.abc import Callable
from typing import Any

from fl_lightning import aggregators, samplers
from fl_lightning.aggregators import (
    Aggregator,
    Amplified,
    Extrapolated,
    SecureSum,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
from fl_lightning.asynchronous import (
    ArrivalRates,
    AsynchronousSelection,
    Delayed,
    ExactAveraging,
    ExpectedStaleness,
    StaleMean,
)
from fl_lightning.callbacks import (
    ChannelFailures,
    GilbertElliott,
    GroupFailures,
    HeterogeneitySchedule,
    ObservedConditions,
    RayleighOutage,
    SamplerSelection,
)
from fl_lightning.engine import Engine
from fl_lightning.personal import HeadFirst, MixedModels, PulledModels
from fl_lightning.samplers import (
    Consistent,
    Drawing,
    Independent,
    Sampler,
    Successive,
    Systematic,
    WithoutReplacement,
    WithReplacement,
)
from fl_lightning.server import FaultPolicy
from fl_lightning.solvers import NotTrueDistillation
from fl_lightning.system import Clock, DayNight, OnOff
from fl_lightning.uploads import Attack, Clip, GaussianMechanism, OverTheAir, Quantized, RandomK, Signs, TopK

Settings = dict[str, Any]
Combination = Callable[[Settings], Settings]
CLIENTS_PER_ROUND = 4


def wrapped(kind: type[ServerOptimizer]) -> Combination:
    return lambda settings: settings | {"aggregator": kind(settings["aggregator"])}


def aggregated(make: Callable[[], Aggregator]) -> Combination:
    """Put an aggregator in place of the mean, also inside a secure sum."""

    def combine(settings: Settings) -> Settings:
        given = settings["aggregator"]
        inside = make()
        if isinstance(given, SecureSum):
            inside = SecureSum(given.bound, given.threshold, weighting=inside)
        return settings | {"aggregator": inside}

    return combine


def sampled(make: Callable[[], Sampler]) -> Combination:
    return lambda settings: settings | {"sampling": SamplerSelection(make(), CLIENTS_PER_ROUND)}


def drawn(kind: type[Drawing]) -> Combination:
    number = 2 if kind is WithoutReplacement else CLIENTS_PER_ROUND  # nobody can be drawn twice there

    def combine(settings: Settings) -> Settings:
        return settings | {"sampling": SamplerSelection(settings["sampling"].sampler, number, kind())}

    return combine


def before(make: Callable[[], Any]) -> Combination:
    return lambda settings: settings | {"uploads": [make(), *settings["uploads"]]}


def after(make: Callable[[], Any]) -> Combination:
    return lambda settings: settings | {"uploads": [*settings["uploads"], make()]}


def given(**makers: Callable[[], Any]) -> Combination:
    return lambda settings: settings | {name: make() for name, make in makers.items()}


def asynchronous(settings: Settings) -> Settings:
    sampling = AsynchronousSelection(ArrivalRates(), CLIENTS_PER_ROUND)
    return settings | {"sampling": sampling, "aggregator": aggregated(StaleMean)(settings)["aggregator"]}


def unwaiting(make: Callable[[], Aggregator]) -> Combination:
    """Put an aggregator for clients that do not wait in place of the mean."""
    return lambda settings: aggregated(make)(asynchronous(settings))


def public(module: Any, base: type, leave_out: type, arguments: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return makers of all public subclasses of a room."""
    found = {}
    for name in dir(module):
        kind = getattr(module, name)
        wanted = inspect.isclass(kind) and issubclass(kind, base) and not issubclass(kind, leave_out)
        if wanted and kind not in (base, aggregators.RobustAggregator):
            found[name] = lambda kind=kind, name=name: kind(**arguments.get(name, {}))
    return found


STEPS = {
    "Clip(of=update)": lambda: Clip(1.0, "update"),
    "Clip(of=work)": lambda: Clip(1.0, "work"),
    "Clip(quantile)": lambda: Clip(1.0, quantile=0.5),
    "Quantized": lambda: Quantized(6),
    "RandomK": lambda: RandomK(0.5),
    "TopK": lambda: TopK(0.5),
    "TopK(no feedback)": lambda: TopK(0.5, error_feedback=False),
    "Signs": lambda: Signs(),
    "OverTheAir": lambda: OverTheAir(20.0),
    "OverTheAir(max_norm)": lambda: OverTheAir(20.0, max_norm=100.0),
    "GaussianMechanism": lambda: GaussianMechanism(Clip(1.0), noise_multiplier=1.0, key=0),
    "GaussianMechanism(clients)": lambda: GaussianMechanism(Clip(1.0), noise_multiplier=1.0, place="clients", key=0),
    "Attack(sign_flip)": lambda: Attack("sign_flip", 0.3),
    "Attack(little_is_enough)": lambda: Attack("little_is_enough", 0.3),
}
_AGGREGATORS = public(
    aggregators, Aggregator, ServerOptimizer, {"SecureSum": {"bound": 100.0, "threshold": 2}}
)  # server optimizers are the wrappers
COMBINATIONS: dict[str, dict[str, Combination]] = {
    "wrapper": {
        kind.__name__: wrapped(kind) for kind in (ServerMomentum, ServerAdam, ServerYogi, Amplified, Extrapolated)
    }
    | {"Consistent": sampled(lambda: Consistent(samplers.Uniform()))},
    "aggregator": {name: aggregated(make) for name, make in _AGGREGATORS.items()},
    "sampler": {name: sampled(make) for name, make in public(samplers, Sampler, Consistent, {}).items()},
    "drawing": {
        each.__name__: drawn(each)
        for each in (Independent, Successive, Systematic, WithoutReplacement, WithReplacement)
    },
    "step before": {name: before(make) for name, make in STEPS.items()},
    "step after": {name: after(make) for name, make in STEPS.items()},
    "clock": {
        "deadline": given(clock=lambda: Clock(deadline=5.5, jitter=0.2)),
        "take_first": given(clock=lambda: Clock(take_first=2, latency=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])),
        "DayNight": given(clock=lambda: Clock(availability=DayNight(0.6, 0.3, 12, 2))),
        "OnOff": given(clock=lambda: Clock(availability=OnOff(4.0, [1.0, 2.0, 3.0, 4.0, 2.0, 6.0]))),
        "asynchronous": asynchronous,
    },
    "asynchronous": {
        "Delayed": unwaiting(lambda: Delayed(aggregators.LastKnownUpdates())),
        "ExactAveraging": unwaiting(ExactAveraging),
        "ExpectedStaleness": unwaiting(ExpectedStaleness),
    },
    "channel": {
        "ChannelFailures(shared)": given(channel=lambda: ChannelFailures("shared")),
        "ChannelFailures(independent)": given(channel=lambda: ChannelFailures("independent")),
        "GilbertElliott": given(channel=lambda: GilbertElliott(4.0)),
        "GroupFailures": given(channel=lambda: GroupFailures(2, 0.8)),
        "RayleighOutage": given(schedule=lambda: HeterogeneitySchedule(num_steps=3, radio=RayleighOutage())),
        "ObservedConditions": given(schedule=lambda: ObservedConditions()),
    },
    "engine": {mode: given(engine=lambda mode=mode: Engine(mode)) for mode in ("sequential", "stacked", "threads")}
    | {"max_local_steps": given(max_local_steps=lambda: "auto")}
    | {"NotTrueDistillation": given(solver=NotTrueDistillation)},
    "personal": {
        "PulledModels": given(personal=PulledModels),
        "MixedModels": given(personal=MixedModels),
        "HeadFirst": given(personal=HeadFirst, local_parameters=lambda: ["last layer"]),
    },
    "faults": {
        "FaultPolicy(reject)": given(faults=lambda: FaultPolicy("reject")),
        "FaultPolicy(no limit)": given(faults=lambda: FaultPolicy(max_norm_ratio=None)),
    },
}
