"""SamplerSelection: who is drawn."""

from typing import Any

from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.samplers.selection import Selection


class SamplerSelection(Selection, Callback):
    """Draws the clients of each round by a sampler.

    Args:
        sampler: Returns the probabilities.
        clients_per_round: K, as a number of draws (6) or as a share of the clients (0.3).
        drawing: How the draws are made; the sampler's own way by default.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it draws clients, and a Trainer is one client", "no sampler")
