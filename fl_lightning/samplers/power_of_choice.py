"""Power-of-choice: clients on which the model is worst."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import SelectsByRule
from fl_lightning.types import Profiles


class PowerOfChoice(SelectsByRule):
    """Draws d candidates in proportion to their weight and takes the K with the highest loss (power-of-choice).

    The selected clients are averaged as they are, so hard clients weigh more than the objective says. Candidates
    evaluate the model on one batch, which is charged.

    Args:
        num_candidates: d, distinct; twice K by default. All clients take part in the choice where there are fewer.
    """

    traits = SamplerTraits(asks="numbers", looks_at_updates=True, scope="none")

    def __init__(self, num_candidates: int | None = None) -> None:
        if num_candidates is not None and num_candidates < 1:
            raise ValueError(f"num_candidates={num_candidates} must be at least 1")
        self.num_candidates = num_candidates

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        num_wanted = int(np.count_nonzero(profiles.weights))
        num_candidates = min(2 * num_draws if self.num_candidates is None else self.num_candidates, num_wanted)
        if num_candidates < num_draws:
            raise ValueError(
                f"{num_draws} clients cannot be chosen among {num_candidates} candidates "
                f"(num_candidates={self.num_candidates}, {num_wanted} clients have a weight): draw fewer clients"
            )
        candidates = np.sort(rng.choice(profiles.num_clients, num_candidates, replace=False, p=profiles.weights))
        highest = np.argsort(-probe.losses(candidates), kind="stable")[:num_draws]
        self.selected = np.sort(candidates[highest])
