"""Loops, planners and profiles from one list of named settings: what belongs to which value is found here."""

from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np

from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import ChannelFailures
from fl_lightning.diagnosis.dry_run import GivenConditions, planner_of
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts.protocols import PLAIN, Handout, LocalWork
from fl_lightning.planning import Planner
from fl_lightning.types import Conditions, Profiles

_ALGORITHM, _SYSTEM = (set(signature(value).parameters) for value in (Algorithm, System))


def made_loop(algorithm: Algorithm | None = None, **settings: Any) -> FederatedLoop:
    """Return a loop; settings of the algorithm take the place of the given one's."""
    return FederatedLoop(*_values(algorithm, settings), **_rest(settings))


def made_planner(**settings: Any) -> Planner:
    """Return a planner; by default a pass over the data is one step."""
    weights = settings.pop("weights")
    epochs = {"steps_per_epoch": np.ones(len(weights), dtype=np.int64)}
    algorithm, system = _values(settings.pop("algorithm", None), settings)
    return Planner(**(epochs | _rest(settings)), algorithm=algorithm, system=system, weights=weights)


def _values(algorithm: Algorithm | None, settings: dict[str, Any]) -> tuple[Algorithm, System]:
    given = {} if algorithm is None else {each.name: getattr(algorithm, each.name) for each in fields(algorithm)}
    own = {name: value for name, value in settings.items() if name in _ALGORITHM}
    return Algorithm(**(given | own)), System(**{name: settings[name] for name in settings.keys() & _SYSTEM})


def _rest(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _ALGORITHM | _SYSTEM}


def made_profiles(weights: Any, num_steps: Any, failure_rates: Any, accumulation: Any, **conditions: Any) -> Profiles:
    """Return what a server knows of some clients."""
    offered = {name: conditions.pop(name) for name in ("offered_accumulation",) if name in conditions}
    known = Conditions(num_steps, failure_rates, **conditions)
    return Profiles(conditions=known, weights=weights, accumulation=accumulation, **offered)


def made_case(
    algorithm: Algorithm, conditions: Any, weights: Any, lr: float = 0.01, clock: Any = None, channel: Any = None
) -> Planner:
    """Return the planner of an algorithm on given rounds, as a diagnosis takes it."""
    system = System(schedule=GivenConditions(conditions), channel=channel or ChannelFailures(), clock=clock)
    return planner_of(algorithm, system, weights, lr)


def made_work(index: int, num_steps: Any, lr: float, handout: Handout = PLAIN) -> LocalWork:
    """Return what clients have to do in a round."""
    return LocalWork(round_index=index, num_steps=num_steps, learning_rate=lr, handout=handout)
