"""How sure a predicted objective is: which parts make it a limit, and which make it depend on the data."""

from fl_lightning.algorithms import Algorithm, System
from fl_lightning.parts.traits import Effect
from fl_lightning.samplers import WithReplacement
from fl_lightning.samplers.selection import Selection
from fl_lightning.system.defaults import ScheduledLinks


def unknown_parts(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the parts whose effect on Omega depends on the data.

    >>> from fl_lightning.uploads import Quantized, TopK
    >>> unknown_parts(Algorithm(uploads=[Quantized(), TopK(), TopK(error_feedback=False)]))
    ('TopK',)
    """
    return _parts(algorithm, "unknown")


def bounded_parts(algorithm: Algorithm, system: System) -> tuple[str, ...]:
    """Return the parts with which the predicted Omega is a limit, or lacks what a run measures.

    The probability of being among the first is exact where each draw and each link is independent of all others and
    nothing changes how long clients take.
    """
    found, clock = _parts(algorithm, "bounded"), system.clock
    if clock.take_first is None:
        return found
    sampling, channel = algorithm.sampling, system.channel
    independent = isinstance(sampling, Selection) and isinstance(sampling.way_of_drawing, WithReplacement)
    shared = isinstance(channel, ScheduledLinks) or vars(channel).get("multiplicity") != "independent"
    return found if independent and not shared and not clock.jitter else (*found, "take_first")


def _parts(algorithm: Algorithm, effect: Effect) -> tuple[str, ...]:
    aggregator = algorithm.aggregator.traits
    of_aggregator: Effect = aggregator.effect if aggregator.linear else "unknown"
    effects = [(algorithm.aggregator, of_aggregator), *((step, step.traits.effect) for step in algorithm.uploads.steps)]
    return tuple(type(part).__name__ for part, its in effects if its == effect)
