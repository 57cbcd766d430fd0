"""Local solvers: how a client steps, and A, the sum of the weights with which its gradients enter its update."""

from fl_lightning.solvers.fedntd import NotTrueDistillation
from fl_lightning.solvers.module_optimizer import ModuleOptimizer
from fl_lightning.solvers.running import as_solver, warn_of_difference
from fl_lightning.solvers.solver import SGD, Clipping, DecayForm, LocalSteps, Solver, TorchOptimizer

__all__ = [
    "SGD",
    "Clipping",
    "DecayForm",
    "LocalSteps",
    "ModuleOptimizer",
    "NotTrueDistillation",
    "Solver",
    "TorchOptimizer",
    "as_solver",
    "warn_of_difference",
]
