"""What other parts must know of a part: one frozen record, which the part declares and a wrapper passes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fl_lightning.theory.checks import one_of
from fl_lightning.types import Scope

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule

Asks = Literal["nothing", "numbers", "vectors"]
# What is known beforehand of what a part does to Omega. ``bounded``: the reported Omega is a limit, or what is missing
# is measured during a run; ``unknown``: it depends on the data.
Effect = Literal["exact", "bounded", "unknown"]
Keeps = Literal["nothing", "memory", "client models", "client vectors"]
_Part = TypeVar("_Part", bound=type)


@dataclass(frozen=True, kw_only=True)
class SamplerTraits:
    """Of a sampler, and of the sampling around it."""

    asks: Asks = "nothing"  # what clients are asked for before the draw: a number each, or as much as the model has
    needs_all_updates: bool = False  # asks for the updates of clients that it may not draw
    learns: bool = False  # p depends on earlier rounds
    looks_at_updates: bool = False  # p depends on what clients compute, not on who arrived alone
    needs_forecast: bool = False  # p rests on a look at typical rounds before the first one
    needs_seconds: bool = False  # p depends on how long a round takes each client on the clock
    # The narrowest scope in which a learning rate may be calibrated. Where p is that of a realised selection ("none")
    # or cannot follow this round's conditions ("average"), a rate calibrated in each round would depend on who was just
    # selected, and the objective with it.
    scope: Scope = "round"
    asynchronous: bool = False  # clients do not wait for each other
    consistent: bool = False  # promises that Omega is w, also over rounds in which not all can be drawn

    def __post_init__(self) -> None:
        one_of("asks", self.asks, Asks)
        one_of("scope", self.scope, Scope)

    @property
    def is_fixed(self) -> bool:
        """Whether the draw depends on conditions, seed and round alone: nobody is asked and nothing is learned."""
        return self.asks == "nothing" and not self.learns


@dataclass(frozen=True, kw_only=True)
class AggregatorTraits:
    """Of an aggregator."""

    only_sums: bool = True  # the sum over n c Delta is all that is used of the updates: nobody need see one of them
    hides_updates: bool = False  # the server learns no more than the sum of the updates
    needs_lost_updates: bool = False  # uses the training of clients whose upload is lost
    linear: bool = True  # the step is linear in the updates, without which Omega depends on the data
    effect: Effect = "exact"  # of a linear one on Omega
    keeps: Keeps = "nothing"  # about clients
    counts_absent: bool = False  # clients that cannot be drawn count as much as ever, by what they sent before
    absence: Effect = "exact"  # of clients that cannot be drawn, on the Omega that is predicted
    moments: bool = False  # the server remembers earlier steps
    older_starts: bool = False  # clients train from the models with which their jobs began, as asynchronous ones do
    num_downloaded: int = 1  # vectors as long as the weights that a client gets before it trains

    def __post_init__(self) -> None:
        one_of("keeps", self.keeps, Keeps)
        one_of("effect", self.effect, Effect)
        one_of("absence", self.absence, Effect)


@dataclass(frozen=True, kw_only=True)
class UploadTraits:
    """Of a step between clients and aggregator."""

    at_server: bool = False  # the server can make this step itself, where clients are on other machines
    hides_updates: bool = False  # the server sees no more than the sum of what leaves this step
    private: bool = False  # bounds what a run says about any one client, and counts it
    secret_draws: bool = False  # its count rests on nobody knowing who was drawn
    keeps_uncovered: bool = False  # what the count does not cover is written, too
    # What leaves it of one client depends on that client's own updates and on public numbers, in this and all later
    # rounds. Where it does not, a client moves the sum by more than its own clipped update.
    separate: bool = False
    public: bool = False  # what it adds depends on public numbers alone, so that it may follow a private step
    remedy: str = ""  # what makes it separate or public, for the error where it has to be and is not
    effect: Effect = "unknown"  # on Omega, besides the factors that it reports

    def __post_init__(self) -> None:
        one_of("effect", self.effect, Effect)


@dataclass(frozen=True, kw_only=True)
class ScheduleTraits:
    """Of a schedule; one that declares none is new in each round, and learns if it has something to save."""

    period: int | None = None  # rounds after which it repeats itself; None: never
    learns: bool = False  # finds out about T and q during the run


def traits_of_schedule(schedule: object) -> ScheduleTraits:
    """Return what a schedule declares; most users' own are one method and declare nothing."""
    match schedule:
        case object(traits=ScheduleTraits() as traits):
            return traits
        case object(state_dict=state_dict):
            return ScheduleTraits(learns=bool(state_dict()))
    return ScheduleTraits()


@dataclass(frozen=True, kw_only=True)
class FederationTraits:
    """What a federation may have besides its protocol; a user's own need have none of it."""

    datamodule: "LightningDataModule | None" = None  # that the data is of; its hooks of the batch transfer are called
    test: object = True  # None: there is no test data, and nothing is evaluated
    prefetch: Callable[..., None] | None = None  # loads what the next round needs
    names: Sequence[str] = ()  # of the clients, where they have some
    in_time_order: bool = False  # the examples of each client are, so that its last ones are held out


def traits_of_federation(federation: object) -> FederationTraits:
    """Return what a federation has of it.

    >>> traits_of_federation(object()).datamodule is None
    True
    """
    names = [each.name for each in fields(FederationTraits) if hasattr(federation, each.name)]
    return FederationTraits(**{name: getattr(federation, name) for name in names})


def check_declared(part: type, methods: Sequence[str], example: str) -> None:
    """Refuse a class that overrides a method which others must know of, without saying so in its traits.

    Raises:
        TypeError: With the method and what to write.
    """
    own = vars(part)
    overridden = next((name for name in methods if name in own), None)
    if overridden is not None and "traits" not in own:
        raise TypeError(
            f"{part.__name__} overrides {overridden}, which other parts must know of: declare in the class what it "
            f"does, such as {example}"
        )


def forwards(base: type, attribute: str) -> Callable[[_Part], _Part]:
    """Give a wrapper all public methods of a base class that it does not define itself, from the part that it wraps.

    So a wrapper has every member of what is inside, also one that the base class gets later.

    Args:
        base: Whose methods.
        attribute: Of the wrapper, with the part inside.

    >>> class Plain:
    ...     def size(self):
    ...         return 1
    >>> @forwards(Plain, "inner")
    ... class Around(Plain):
    ...     def __init__(self, inner):
    ...         self.inner = inner
    >>> class Large(Plain):
    ...     def size(self):
    ...         return 7
    >>> Around(Large()).size()
    7
    """

    def completed(wrapper: _Part) -> _Part:
        for name, member in vars(base).items():
            if not name.startswith("_") and callable(member) and name not in vars(wrapper):
                setattr(wrapper, name, _forwarding(name, attribute, member))
        return wrapper

    return completed


def _forwarding(name: str, attribute: str, like: Callable[..., object]) -> Callable[..., object]:
    def forward(self: object, *arguments: object, **named: object) -> object:
        member: Callable[..., object] = getattr(getattr(self, attribute), name)
        return member(*arguments, **named)

    forward.__name__, forward.__doc__ = name, like.__doc__
    return forward


def layers(part: object) -> list[Any]:
    """Return a part and all that it wraps, outermost first.

    >>> from fl_lightning.aggregators import AnonymousMean, ServerMomentum
    >>> [type(each).__name__ for each in layers(ServerMomentum(AnonymousMean()))]
    ['ServerMomentum', 'AnonymousMean']
    """
    found: list[Any] = [part]
    while hasattr(found[-1], "wrapped"):
        found.append(found[-1].wrapped)
    return found
