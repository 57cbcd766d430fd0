"""Power-of-choice: clients on which the model is worst."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.base import Sampler
from fl_lightning.samplers.drawing import Certain
from fl_lightning.types import IntVector, Profiles, Vector


class PowerOfChoice(Sampler):
    """Draws d candidates in proportion to their weight and takes the K with the highest loss (power-of-choice).

    The selected clients are averaged as they are, so hard clients weigh more than the objective says. Candidates
    evaluate the model on one batch, which is charged.

    Args:
        num_candidates: d, distinct; twice K by default. All clients take part in the choice where there are fewer.
    """

    drawing = Certain()
    traits = SamplerTraits(asks="numbers", looks_at_updates=True, scope="none")

    def __init__(self, num_candidates: int | None = None) -> None:
        if num_candidates is not None and num_candidates < 1:
            raise ValueError(f"num_candidates={num_candidates} must be at least 1")
        self.num_candidates = num_candidates
        self._selected: IntVector = np.empty(0, dtype=np.int64)

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        num_wanted = int(np.count_nonzero(profiles.weights))
        num_candidates = min(2 * num_draws if self.num_candidates is None else self.num_candidates, num_wanted)
        if num_candidates < num_draws:
            raise ValueError(
                f"{num_draws} clients cannot be chosen among {num_candidates} candidates "
                f"(num_candidates={self.num_candidates}, {num_wanted} clients have a weight): draw fewer clients"
            )
        drawn = rng.choice(profiles.num_clients, num_candidates, replace=False, p=profiles.weights)
        candidates = np.sort(drawn).astype(np.int64)
        losses = probe.losses(candidates)
        self._selected = np.sort(candidates[np.argsort(-losses, kind="stable")[:num_draws]])

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return 1/K for each chosen client; before the first choice that of the candidates, w."""
        if not len(self._selected):
            return profiles.weights
        shares = np.zeros(profiles.num_clients)
        shares[self._selected] = 1 / len(self._selected)
        return shares
