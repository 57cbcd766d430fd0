"""Base classes for parts of your own, and the words for a part that does not fit.

A config may name any subclass of these, whatever its annotations. A class with another base but the same methods counts
as a subclass too.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.types import Cohort, Conditions, IntVector, Profiles, RoundPlan

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Part(ABC):  # noqa: B024  the bases have them
    """Lets a class count as a subclass of one of the bases below if it can be called as the base can."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        if _Part not in cls.__bases__ or other.__module__ == "builtins":  # a text has a method ``split`` as well
            return NotImplemented
        return misfit(other, cls) is None or NotImplemented


class Schedule(_Part):
    """Decides the conditions of a round: T and q of every client."""

    @abstractmethod
    def configure_conditions(self, round_index: int, steps_per_epoch: IntVector, seed: int) -> Conditions:
        """Return T and q of all clients in this round; ``steps_per_epoch`` has one entry for each client."""


class Channel(_Part):
    """Decides whose upload arrives."""

    @abstractmethod
    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""


class Sampling(_Part):
    """Decides who takes part.

    :class:`fl_lightning.samplers.Selection` is one around a sampler; few need another.
    """

    @property
    @abstractmethod
    def traits(self) -> SamplerTraits:
        """What other parts must know of it."""

    @abstractmethod
    def num_draws(self, num_clients: int) -> int:
        """Return K."""

    @abstractmethod
    def start(self, forecast: Forecast) -> None:
        """Look at typical rounds; called once before the first one."""

    @abstractmethod
    def ask(self, profiles: Profiles, probe: Probe | None, rng: np.random.Generator) -> None:
        """Ask clients what the probabilities depend on: once per round, before all else, where the traits say so."""

    @abstractmethod
    def expected_cohort(self, profiles: Profiles) -> Cohort:
        """Return the probabilities of the draw without drawing (counts are 0)."""

    @abstractmethod
    def configure_cohort(self, expected: Cohort, rng: np.random.Generator) -> Cohort:
        """Return who takes part: the expected cohort with its counts drawn."""


class DataSource(_Part):
    """A data set that can become a federation."""

    @abstractmethod
    def load(self, seed: int) -> Any:
        """Fetch what is missing, split it among the clients and return the federation."""


class Partition(_Part):
    """Splits a data set among clients.

    One that needs no labels says so by ``uses_labels = False``. One that looks at something else of the data has
    ``split_dataset(dataset, rng)`` besides.
    """

    @abstractmethod
    def split(self, labels: IntVector, rng: np.random.Generator) -> list[IntVector]:
        """Return for each client the indices of its examples."""


def misfit(part: object, wanted: type) -> str | None:
    """Return which method of a base class or protocol a part lacks, or has with other arguments; None if it fits.

    >>> class Late:
    ...     def configure_delivery(self, plan): ...
    >>> misfit(Late, Channel)
    'wanted configure_delivery(plan, seed), found configure_delivery(plan)'
    >>> misfit(Late(), Schedule)
    'wanted configure_conditions(round_index, steps_per_epoch, seed), found no such method'
    """
    members = [(name, member) for name, member in vars(wanted).items() if not name.startswith("_")]
    for name, member in members:
        if not inspect.isfunction(member):
            continue
        needed = _arguments(wanted, name)
        found = getattr(part, name, None)
        if not callable(found) or getattr(found, "__isabstractmethod__", False):
            return f"wanted {name}{needed}, found no such method"
        given = _arguments(part, name)
        if given is not None and needed is not None:
            try:
                given.bind(*(each.name for each in needed.parameters.values() if each.kind in _POSITIONAL))
            except TypeError:
                return f"wanted {name}{needed}, found {name}{given}"
    for name, member in members:
        if isinstance(member, property) and not hasattr(part, name):
            return f"wanted the property {name}, found no such attribute"
    return None


def check_part(argument: str, part: object, wanted: type) -> None:
    """Refuse a part that lacks a method of a base class or protocol, before anything is called.

    Raises:
        TypeError: With the method, what is wanted and what was found.
    """
    if inspect.isclass(part):
        raise TypeError(f"{argument}={part.__qualname__} is a class: give an object of it, {part.__qualname__}(...)")
    problem = misfit(part, wanted)
    if problem is not None:
        name = f"{wanted.__module__}.{wanted.__qualname__}"
        raise TypeError(f"{argument}={type(part).__qualname__} does not fit {name}: {problem}")


def _arguments(part: object, name: str) -> inspect.Signature | None:
    """Return the arguments of a method without ``self`` and without annotations; None where they are not known."""
    try:
        signature = inspect.signature(getattr(part, name))
    except (TypeError, ValueError):
        return None
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    if inspect.isclass(part) and inspect.isfunction(inspect.getattr_static(part, name)):
        parameters = parameters[1:]
    return inspect.Signature(parameters)
