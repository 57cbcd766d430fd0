"""The two values that a run is made of: an Algorithm, and the System that it meets.

An algorithm is a product of parts: sampling (p) x aggregator (c) x solver (A). Planner, loop, diagnosis, toy, presets,
figures and deployment all take the same value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Literal

from fl_lightning.aggregators import Aggregator, AnonymousMean
from fl_lightning.parts.bases import Channel, Sampling, Schedule, check_part
from fl_lightning.personal import Personal
from fl_lightning.samplers import Importance
from fl_lightning.samplers.selection import Selection
from fl_lightning.server import Averaging, Calibration, ExponentialAverage, FaultPolicy, RateSchedule
from fl_lightning.solvers import Clipping, Solver, as_solver
from fl_lightning.system import Clock
from fl_lightning.system.defaults import EqualWork, ScheduledLinks
from fl_lightning.uploads import Upload, Uploads

StepLimit = int | Literal["auto"] | None
TargetWeights = Literal["size", "uniform"] | list[float] | str


@dataclass(frozen=True, kw_only=True, init=False)
class Algorithm:
    """What runs at the server and in the clients; plain FedAvg where nothing is said.

    Args:
        sampling: Decides who is drawn; by default three tenths of the clients in proportion to their weights (FedAvg).
        aggregator: Turns what arrived into the next model.
        solver: Makes the local steps; the name of an optimizer of ``torch.optim`` stands for it, and ``"module"`` for
            the module's own ``configure_optimizers``, :class:`fl_lightning.solvers.ModuleOptimizer`.
        gradient_clip_val: Clip the gradient of each local step to this, as a Trainer does; None: no clipping.
        gradient_clip_algorithm: ``norm``: the norm of all gradients together. ``value``: each number by itself.
        calibration: Gives all algorithms the same expected step length.
        averaging: Averages the global model over the rounds; the average is evaluated beside the model itself.
        uploads: What happens to an update between client and aggregator, one step after another.
        max_local_steps: No client is asked for more local steps in a round, though it could take them; None: no limit.
            ``auto``: the harmonic mean of T, see :meth:`fl_lightning.planning.Planner.step_limit`.
        local_parameters: Patterns of the names of parameters and buffers that stay at the clients, such as
            ``["head.*", "*.bn*"]``, see :class:`fl_lightning.engine.local_parts.LocalParts`.
        personal: What clients train for themselves beside the update that they send, such as a model of their own.
        lr_schedule: Multiplies the base learning rate in each round; constant by default.
        faults: What becomes of updates that are not finite.

    >>> Algorithm(solver="SGD").aggregator.traits.only_sums
    True
    """

    sampling: Sampling
    aggregator: Aggregator
    solver: Solver
    calibration: Calibration
    averaging: Averaging
    uploads: Uploads
    max_local_steps: StepLimit
    local_parameters: Sequence[str]
    personal: Personal | None
    lr_schedule: RateSchedule | None
    faults: FaultPolicy

    def __init__(
        self,
        *,
        sampling: Sampling | None = None,
        aggregator: Aggregator | None = None,
        solver: Solver | str | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Clipping = "norm",
        calibration: Calibration | None = None,
        averaging: Averaging | None = None,
        uploads: Sequence[Upload] = (),
        max_local_steps: StepLimit = None,
        local_parameters: Sequence[str] = (),
        personal: Personal | None = None,
        lr_schedule: RateSchedule | None = None,
        faults: FaultPolicy | None = None,
    ) -> None:
        check_step_limit(max_local_steps)
        if isinstance(local_parameters, str):
            raise ValueError(
                f"local_parameters={local_parameters!r} must be a list of patterns: use [{local_parameters!r}]"
            )
        drawn, aggregated = sampling or Selection(Importance()), aggregator or AnonymousMean()
        check_part("sampling", drawn, Sampling)
        if drawn.traits.asynchronous and not aggregated.traits.older_starts:
            raise ValueError(
                f"{type(drawn).__name__} has uploads that began with older models, but {type(aggregated).__name__} "
                "takes them for those of the newest: use StaleMean, or Delayed around it"
            )
        _set(
            self,
            sampling=drawn,
            aggregator=aggregated,
            solver=as_solver(solver).clipped(gradient_clip_val, gradient_clip_algorithm),
            calibration=calibration or Calibration(),
            averaging=averaging or ExponentialAverage(),
            uploads=Uploads(uploads),
            max_local_steps=max_local_steps,
            local_parameters=local_parameters,
            personal=personal,
            lr_schedule=lr_schedule,
            faults=faults or FaultPolicy(),
        )


@dataclass(frozen=True, kw_only=True, init=False)
class System:
    """What an algorithm meets: the same for all algorithms that are compared.

    Args:
        schedule: Decides T and q of every client; by default all do the same work over links that never fail.
        channel: Decides whose upload arrives; by default each is lost with the schedule's probability q.
        clock: Says how long clients take, who is in time and who can be drawn; one second per local step by default.
        weights: The objective: ``size`` (share of the data), ``uniform``, or one number for each client, as a list or
            as a file of them (.csv, .json, .npy).
    """

    schedule: Schedule
    channel: Channel
    clock: Clock
    weights: TargetWeights

    def __init__(
        self,
        *,
        schedule: Schedule | None = None,
        channel: Channel | None = None,
        clock: Clock | None = None,
        weights: TargetWeights = "size",
    ) -> None:
        conditions, links = schedule or EqualWork(), channel or ScheduledLinks()
        check_part("schedule", conditions, Schedule)
        check_part("channel", links, Channel)
        _set(self, schedule=conditions, channel=links, clock=clock or Clock(), weights=weights)


def _set(record: object, **fields: object) -> None:
    """Fill a frozen record with what stands for its arguments."""
    for name, value in fields.items():
        object.__setattr__(record, name, value)


def check_step_limit(limit: StepLimit) -> None:
    """Refuse what is no limit on local steps.

    >>> check_step_limit(0)
    Traceback (most recent call last):
        ...
    ValueError: max_local_steps=0 must be a whole number of local steps, 1 or more, 'auto', or None for no limit
    """
    whole = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1
    if not (whole or limit is None or limit == "auto"):
        raise ValueError(
            f"max_local_steps={limit!r} must be a whole number of local steps, 1 or more, 'auto', or None for no limit"
        )


def refuse_elsewhere(name: str, given: Mapping[str, object]) -> None:
    """Refuse arguments that a function does not have, and name the value that has them.

    >>> refuse_elsewhere("FederatedLoop", {"clock": None})
    Traceback (most recent call last):
        ...
    TypeError: FederatedLoop got an unexpected keyword argument 'clock': give it to System(clock=...)
    """
    for argument in given:
        owner = next((each.__name__ for each in (Algorithm, System) if argument in signature(each).parameters), None)
        instead = "" if owner is None else f": give it to {owner}({argument}=...)"
        raise TypeError(f"{name} got an unexpected keyword argument {argument!r}{instead}")
