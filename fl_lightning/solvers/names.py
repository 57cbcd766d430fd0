"""Solvers by the names of torch's optimizers."""

import torch

from fl_lightning.solvers import SGD, ModuleOptimizer, Solver, TorchOptimizer


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
    try:
        return TorchOptimizer(kind)
    except ValueError as error:
        raise ValueError(
            f"{error}: in Python, solver=TorchOptimizer(torch.optim.{given}, allow_nonlinear=True)"
        ) from None
