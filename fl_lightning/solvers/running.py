"""Which solver runs: by name, and whether it makes the local steps that a module asks for."""

import logging

import torch
from lightning.pytorch import LightningModule
from torch.optim import Optimizer

from fl_lightning.solvers.module_optimizer import ModuleOptimizer, configured, has_optimizer, split
from fl_lightning.solvers.solver import SGD, Solver, TorchOptimizer

_LOG = logging.getLogger("fl_lightning")
Settings = dict[str, object]  # of an optimizer, with its name
_COMPARED = ("lr", "momentum", "dampening", "nesterov", "weight_decay", "betas", "eps")


def as_solver(given: Solver | str | None) -> Solver:
    """Return a solver, also by the name of a class of ``torch.optim`` or as ``module``; plain SGD by default.

    >>> type(as_solver("SGD")).__name__, type(as_solver(None)).__name__
    ('SGD', 'SGD')
    """
    if given is None or given == "SGD":
        return SGD()
    if given == "module":
        return ModuleOptimizer()
    if isinstance(given, Solver):
        return given
    kind = getattr(torch.optim, given, None) if isinstance(given, str) else None
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)) or kind is torch.optim.Optimizer:
        raise ValueError(f"solver={given!r} is unknown: use a Solver or the name of an optimizer of torch.optim: 'SGD'")
    return TorchOptimizer(kind)


def warn_of_difference(module: LightningModule, solver: Solver, lr: float | None) -> None:
    """Say which solver runs where the module's own optimizer suggests another; that of our modules is for a Trainer."""
    if solver.clip is not None and not solver.obstacle:
        _LOG.warning("gradients are clipped: A, by which unequal work is corrected, is exact where nothing is clipped")
    if not has_optimizer(module) or type(module).configure_optimizers.__module__.startswith("fl_lightning."):
        return
    try:
        own = configured(module)
    except Exception:  # it may need a Trainer; only solver='module' uses what it returns
        return
    wanted = _described(own.optimizer) | {"lr": own.base_rate}
    if isinstance(solver, ModuleOptimizer):
        if lr is not None and lr != own.base_rate:
            _LOG.warning(
                f"solver='module': local steps are made by {_text(wanted)} of {type(module).__name__} at its own rate; "
                f"lr={lr:g} of the loop is not used: leave it away (lr=None), or give the module another rate"
            )
        return
    running = _running(solver, lr or 0.0)
    scheduled = "" if own.scheduler is None else f" and {type(own.scheduler).__name__}"
    if running != wanted or scheduled:
        _LOG.warning(
            f"local steps are made by {_text(running)}, not by {_text(wanted)}{scheduled} of {type(module).__name__}: "
            "use solver='module' for the module's own"
        )


def refuse_several_optimizers(module: LightningModule) -> None:
    """Refuse a module that trains its parts by turns, which one solver cannot do."""
    if not has_optimizer(module):
        return
    try:
        optimizers, _ = split(module.configure_optimizers())
    except Exception:  # it may need a Trainer; the loop does not use what it returns
        return
    if len(optimizers) > 1:
        raise ValueError(
            f"{type(module).__name__}.configure_optimizers returns {len(optimizers)} optimizers, but a federation "
            "makes its local steps with one solver: return one optimizer, or train the parts in separate modules"
        )


def _running(solver: Solver, lr: float) -> Settings:
    if isinstance(solver, SGD):
        extra = {name: value for name in ("proximal", "decay") if (value := getattr(solver, name))}
        plain = {name: getattr(solver, name) for name in ("momentum", "dampening", "nesterov", "weight_decay")}
        return {"name": "SGD", "lr": lr} | plain | extra
    if isinstance(solver, TorchOptimizer):
        made = solver.optimizer([torch.nn.Parameter(torch.zeros(1))])
        extra = {name: value for name in ("proximal", "clip_norm") if (value := getattr(solver, name))}
        return _described(made) | {"lr": lr} | extra
    return {"name": type(solver).__name__, "lr": lr}


def _described(optimizer: Optimizer) -> Settings:
    group = optimizer.param_groups[0]
    return {"name": type(optimizer).__name__} | {name: group[name] for name in _COMPARED if name in group}


def _text(settings: Settings) -> str:
    """Return an optimizer as one would write it, with what is not zero.

    >>> _text({"name": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": False})
    'SGD(lr=0.1, momentum=0.9)'
    """
    shown = ", ".join(f"{name}={value}" for name, value in settings.items() if name != "name" and value)
    return f"{settings['name']}({shown})"
