"""What a step between client and aggregator is: it takes the updates that arrived and returns what the server sees."""

import torch

from fl_lightning.parts.memory import Remembers
from fl_lightning.types import Profiles, RoundPlan, Updates, Vector


class Upload(Remembers):
    """Changes updates on their way to the aggregator: compresses them, clips them, adds noise.

    Randomness comes from :mod:`fl_lightning.seeding` by (seed, round, client), so that neither the order of the clients
    nor the number of processes changes a result. Name in ``memory`` the attributes that a resumed run needs. A step may
    have the hooks of a callback: ``configure_metrics(result)`` adds columns, ``on_federation_start(loop)`` may check.
    """

    at_server: bool = False  # whether the server can make this step itself, where clients are on other machines
    hides_updates: bool = False  # whether the server sees no more than the sum of what leaves this step

    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for memory; ``weights`` are the initial ones."""

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
