"""What would help a federation, by the theory behind ``diagnose``."""

import numpy as np

from fl_lightning import theory
from fl_lightning.audit.estimate import Audit
from fl_lightning.diagnosis.objective import Diagnosis, Needs, TypicalRound, diagnose
from fl_lightning.theory.checks import Vector

AS_IT_IS = "as it is"


def cures(audited: Audit) -> list[Diagnosis]:
    """Return what the federation optimises as it is, and what it would with each cure, by the theory of ``diagnose``.

    The rates of clients that were never heard are not known: they are taken as the mean of the others, and a client
    whose uploads were all lost as one that would lose all but half an upload more.
    """
    w = audited.weights
    p = audited.asked.value
    number = audited.num_draws * audited.num_rounds * p  # asked
    q = np.where(audited.lost.value < 1, audited.lost.value, (number - 0.5) / np.maximum(number, 1))
    q = np.where(np.isnan(q), np.nanmean(q), np.clip(q, 0.0, 1 - 1e-9))
    t = np.where(audited.steps.value > 0, audited.steps.value, np.nan)
    t = np.where(np.isnan(t), np.nanmean(t), t)
    limit = theory.harmonic_mean_steps(w, t)

    def one(name: str, probabilities: Vector, amounts: Vector, needs: Needs, steps: Vector = t) -> Diagnosis:
        """Return the diagnosis of a rule by its probabilities and p c, how much it counts of a client's uploads."""
        c = np.divide(amounts, probabilities, out=np.zeros_like(w), where=probabilities > 0)
        draws = max(1, round(audited.num_draws))
        typical = TypicalRound(
            failure_rates=q,
            accumulation=steps,
            probabilities=probabilities,
            coefficients=c,
            num_draws=draws,
            work=float(np.minimum(1.0, draws * probabilities) @ steps),
            offered_accumulation=t,
        )
        return diagnose(name, w, [typical], needs)

    fedacs = theory.heterogeneity_aware_probabilities(w, q, t)
    short = np.minimum(t, limit)
    limited = theory.heterogeneity_aware_probabilities(w, q, short)
    asked = w * (p > 0)
    before = Needs(before_draw=("q", "work"))
    return [
        one(AS_IT_IS, p, audited.objective.value / ((1 - q) * t), Needs()),
        one("FedACS's draws", fedacs, fedacs, before),
        one(f"FedACS's draws, work limited to {limit:.3g} steps", limited, limited, before, short),
        one("normalised and communication-aware weights", p, asked / ((1 - q) * t), Needs(with_upload=("q", "work"))),
        one("normalised weights", p, asked / t, Needs(with_upload=("work",))),
        one("communication-aware weights", p, asked / (1 - q), Needs(with_upload=("q",))),
    ]
