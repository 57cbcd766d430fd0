"""What a step between client and aggregator is: it takes the updates that arrived and returns what the server sees."""

from typing import TYPE_CHECKING

import torch

from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.traits import UploadTraits
from fl_lightning.types import Profiles, RoundPlan, Updates, Vector
from fl_lightning.uploads.noise import Noise

if TYPE_CHECKING:
    from fl_lightning.planning import Planner


class Upload(Remembers):
    """Changes updates on their way to the aggregator: compresses them, clips them, adds noise.

    Randomness comes from :mod:`fl_lightning.seeding` by (seed, round, client), so that neither the order of the clients
    nor the number of processes changes a result. Name in ``memory`` the attributes that a resumed run needs. A step may
    have the hooks of a callback: ``configure_metrics(result)`` adds columns.
    """

    noise: Noise | None = None  # of a private step

    @property
    def epsilon_kind(self) -> str:
        """Of a private step: whether its epsilon is exact or an upper bound."""
        return ""

    @property
    def traits(self) -> UploadTraits:
        """What other parts must know of it; what a step that declares none does to Omega is not known."""
        return UploadTraits()

    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for memory; ``weights`` are the initial ones."""

    def start(self, planner: "Planner", num_buffers: int) -> None:
        """Look at the run before its first round, and refuse it where this step cannot keep its promise.

        Args:
            planner: Of the run.
            num_buffers: Values in float buffers that clients send besides their weights.
        """

    def allows(self, plan: RoundPlan) -> bool:
        """Return whether a round may be played, given its undrawn plan."""
        return True

    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        """Return the updates as the server sees them."""
        return updates

    def factors(self, profiles: Profiles) -> Vector | None:
        """Return the expected factor on what each client contributes, (M,); None where the mean is kept."""
        return None

    def measured_factors(self) -> Vector | None:
        """Return the factor on what each client contributes as measured so far, (M,); None where there is none.

        It is reported with Omega and used for nothing else: a rate that followed it would tell about the data.
        """
        return None

    def noise_variance(self, plan: RoundPlan) -> float:
        """Return the expected squared length of the noise on the sum, for gradients of length 1."""
        return 0.0

    def num_bytes(self, num_values: int, num_bytes: float) -> float:
        """Return the bytes of one upload of ``num_values`` values that took ``num_bytes`` before this step."""
        return num_bytes
