"""SamplerSelection: who is drawn."""

from fl_lightning.callbacks.base import RoundCallback
from fl_lightning.samplers.selection import Selection


class SamplerSelection(Selection, RoundCallback):
    """Draws the clients of each round by a sampler.

    Args:
        sampler: Returns the probabilities.
        clients_per_round: K, as a number of draws (6) or as a share of the clients (0.3; 1.0 is all of them, 1 is one).
        drawing: How the draws are made; the sampler's own way by default.
        absent: What becomes of the share of clients that cannot be drawn, ``corrected`` or ``replaced``, see
            :class:`fl_lightning.samplers.selection.Selection`.
    """

    not_in_trainer = "it draws clients, and a Trainer is one client; use no sampler"
