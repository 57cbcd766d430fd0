"""Steps between client and aggregator: each takes the updates that arrived and returns what the server sees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl_lightning.parts.memory import Remembers, start_anew
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


class Uploads:
    """Applies steps in their order; without any, updates arrive as they were sent.

    Args:
        steps: The first is nearest to the client.
    """

    def __init__(self, steps: "Sequence[Upload] | Uploads" = ()) -> None:
        self.steps: list[Upload] = list(steps.steps if isinstance(steps, Uploads) else steps)
        for step in self.steps:
            if not isinstance(step, Upload):
                raise TypeError(f"uploads holds {step!r}: give objects of subclasses of fl_lightning.uploads.Upload")

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def secret(self) -> UploadTraits | None:
        """The traits of a private step whose noise nobody can recompute; None where there is none to keep secret."""
        found = (step.traits for step in self.steps if step.noise is not None and step.noise.is_secret)
        return next(found, None)

    @property
    def noise(self) -> Noise | None:
        """Where the noise of the private step comes from; None where nothing is private."""
        return next((step.noise for step in self.steps if step.traits.private), None)

    @property
    def epsilon_kind(self) -> str:
        """Whether the epsilon of the private step is exact or an upper bound; empty where nothing is private."""
        return next((step.epsilon_kind for step in self.steps if step.traits.private), "")

    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for memory."""
        for step in self.steps:
            step.setup(num_clients, weights)

    def start(self, planner: "Planner", num_buffers: int) -> None:
        """Let all steps look at the run before its first round."""
        for step in self.steps:
            step.start(planner, num_buffers)

    def allow(self, plan: RoundPlan) -> bool:
        """Return whether all steps allow a round."""
        return all(step.allows(plan) for step in self.steps)

    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        """Return the updates as the server sees them."""
        for step in self.steps:
            updates = step(updates, plan, seed)
        return updates

    def factors(self, profiles: Profiles) -> Vector | None:
        """Return the expected factor of all steps together on what each client contributes; None where it is 1."""
        found = [factors for step in self.steps if (factors := step.factors(profiles)) is not None]
        return np.prod(found, axis=0) if found else None

    def measured_factors(self) -> Vector | None:
        """Return the measured factor of all steps together; None where nothing is measured."""
        found = [factors for step in self.steps if (factors := step.measured_factors()) is not None]
        return np.prod(found, axis=0) if found else None

    def noise_variance(self, plan: RoundPlan) -> float:
        """Return the expected squared length of the noise of all steps on the sum, for gradients of length 1."""
        return sum(step.noise_variance(plan) for step in self.steps)

    def num_bytes(self, num_values: int, value_bytes: int = 4) -> float:
        """Return the bytes of one upload.

        >>> Uploads().num_bytes(100)
        400.0
        """
        num_bytes = float(num_values * value_bytes)
        for step in self.steps:
            num_bytes = step.num_bytes(num_values, num_bytes)
        return num_bytes

    def start_anew(self) -> None:
        """Forget earlier runs."""
        for step in self.steps:
            start_anew(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory of each step."""
        return {f"{place} {type(step).__name__}": step.state_dict() for place, step in enumerate(self.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If it is the memory of other steps.
        """
        found = {f"{place} {type(step).__name__}": step for place, step in enumerate(self.steps)}
        if found.keys() != state.keys():
            raise ValueError(f"the checkpoint has the uploads {sorted(state)}, but the run has {sorted(found)}")
        for name, step in found.items():
            step.load_state_dict(state[name])
