"""Scheme C of Ruan et al.: incomplete work counts as if it had been finished."""

from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator
from fl_lightning.types import Cohort, Profiles, Vector


class IncompleteWork(Aggregator):
    r"""Scales the update of a client that made s of E steps by E/s (scheme C of Ruan et al. 2021).

    .. math:: X \leftarrow X - \frac{\eta}{K} \sum_{m\ \mathrm{delivered}} n_m \frac{E}{T_m} \Delta_m

    With p = w this gives :math:`\Omega \propto w (1-q) A / T`, for plain SGD :math:`w (1-q)`. It counts steps where
    :class:`NormalizedMean` counts their accumulated weight A, so momentum, decay and a proximal term stay uncorrected.
    A client that does not arrive is left out, as in the original, whose scheme C corrects the work of active clients.

    Args:
        nominal_steps: E, the number of steps that is a full round of work; by default that of the busiest client of the
            round, whether it is drawn or not.
    """

    def __init__(self, nominal_steps: float | None = None) -> None:
        if nominal_steps is not None and not 0 < nominal_steps < float("inf"):
            raise ValueError(f"nominal_steps={nominal_steps} must be a positive number")
        self.nominal_steps = nominal_steps

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor times E / T."""
        nominal_steps = float(profiles.num_steps.max()) if self.nominal_steps is None else self.nominal_steps
        return cohort.coefficients * nominal_steps / profiles.num_steps
