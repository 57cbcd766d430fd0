"""What makes a processor faster and changes no result: one switch, ``Engine(cpu_tuning=...)``, for all of it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from fl_lightning.engine.cpu.layout import plain_dropout
from fl_lightning.engine.cpu.reorder import pool_before_relu


@contextmanager
def tuned(module: nn.Module, random: bool) -> Iterator[None]:
    """Arrange a module for the time of the context.

    Args:
        module: The module.
        random: Whether it draws random numbers, whose order must then be kept.
    """
    with ExitStack() as stack:
        stack.enter_context(pool_before_relu(module))
        if random:
            stack.enter_context(plain_dropout(module))
        yield
