"""RoundCallback: what our callbacks do in a plain ``lightning.Trainer``, where there is one client."""

import os
from typing import ClassVar

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from typing_extensions import Self

from fl_lightning.samplers.selection import Selection


class RoundCallback(Callback):
    """A callback of federated rounds; in a plain Trainer it says that it has no meaning there, and what has."""

    not_in_trainer: ClassVar[str]  # why, and what to use instead

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a plain Trainer."""
        raise MisconfigurationException(
            f"{type(self).__name__} has no meaning in a plain Trainer: {self.not_in_trainer}, or run it in "
            "fl_lightning.FederatedLoop"
        )


class OneClient:
    """What a schedule and a channel are in a plain Trainer: those of one client among several."""

    client, num_clients = 0, 1
    failure_rate: float | None = None  # q there, where it is known

    def as_client(self, client: int, num_clients: int) -> Self:
        """Be one client of several in a plain Trainer, with the T, q and links that it has in a federation."""
        if not 0 <= client < num_clients:
            raise ValueError(f"client={client} must be in 0..{num_clients - 1}, as num_clients={num_clients}")
        self.client, self.num_clients = client, num_clients
        return self


def global_seed() -> int:
    """Return the seed that ``seed_everything`` has set; 0 without one."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


class SamplerSelection(Selection, RoundCallback):
    """Draws the clients of each round by a sampler.

    Args:
        sampler: Returns the probabilities.
        clients_per_round: K, as a number of draws (6) or as a share of the clients (0.3; 1.0 is all of them, 1 is one).
        drawing: How the draws are made; by default the sampler's own way, which for most of them is ``Systematic``:
            distinct clients as far as K p <= 1. The paper's independent draws are ``WithReplacement``.
        absent: What becomes of the share of clients that cannot be drawn, ``corrected`` or ``replaced``, see
            :class:`fl_lightning.samplers.selection.Selection`.
    """

    not_in_trainer = "it draws clients, and a Trainer is one client; use no sampler"
