"""Over-the-air computation: uploads add up in the radio channel, and nobody hears a single one."""

from dataclasses import replace

import numpy as np
from typing_extensions import override

from fl_lightning.aggregators.aggregator import row_norms
from fl_lightning.parts.traits import UploadTraits
from fl_lightning.seeding import Purpose
from fl_lightning.types import RoundPlan, Updates
from fl_lightning.uploads.chain import Upload
from fl_lightning.uploads.gaussian import gaussian


class OverTheAir(Upload):
    r"""Adds the noise of the receiver to the sum that the channel makes (Amiri and Gündüz 2020, Zhu et al. 2020).

    All clients send at once, as analogue signals. Each inverts its channel, :math:`x_m = b\, n_m c_m \Delta_m / h_m`,
    so that signals arrive aligned and add up. Power is limited, :math:`\|x_m\|^2 \le d P`, so a client whose gain
    :math:`|h_m|^2` is below a threshold g stays silent (truncated channel inversion). Under Rayleigh fading of mean
    gain :math:`\bar g_m` that has probability :math:`q_m = 1 - e^{-g / \bar g_m}`: the failure rates of the schedule,
    which ``RayleighOutage`` makes from distances, *are* the truncation probabilities, and FedACS corrects them. The
    largest common b is :math:`\sqrt{d P g} / B` for signals of length up to B, and the receiver divides by it:

    .. math:: \sum_m n_m c_m \Delta_m + \nu, \qquad
        \nu \sim \mathcal{N}\Big(0, \frac{B^2}{d\, \mathrm{SNR}} I\Big), \qquad
        \mathrm{SNR} = \frac{P g}{\sigma_\mathrm{receiver}^2}

    The server gets a noisy sum, no names and no counts: only algorithms that need no more can run. Omega stays; the
    noise enters the variance.

    Args:
        snr_db: Signal-to-noise ratio of a client at the threshold that sends at full power.
        max_norm: B; by default the longest signal of the round, for which each sender tells one number beforehand.
            Longer ones are an error. A private run needs it, for the length of the longest update says much about it.
    """

    def __init__(self, snr_db: float = 20.0, max_norm: float | None = None) -> None:
        if not -100 < snr_db < 200:
            raise ValueError(f"snr_db={snr_db} must be a ratio in decibels, between -100 and 200")
        if max_norm is not None and not 0 < max_norm < float("inf"):
            raise ValueError(f"max_norm={max_norm} must be a positive number")
        self.snr_db, self.max_norm = snr_db, max_norm
        self._deviation = 0.0

    @property
    @override
    def traits(self) -> UploadTraits:
        public = self.max_norm is not None
        return UploadTraits(hides_updates=True, public=public, remedy="give it a max_norm", effect="exact")

    @override
    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        counts = plan.cohort.counts[updates.clients]
        lengths = counts * np.abs(plan.coefficients[updates.clients]) * row_norms(updates.deltas)
        longest = float(lengths.max(initial=0.0))
        if self.max_norm is not None and longest > self.max_norm * (1 + 1e-6):
            raise ValueError(
                f"round {plan.index}: a signal is longer than max_norm={self.max_norm:g}, {longest:.3g}: raise "
                "max_norm, or put fl_lightning.uploads.Clip before OverTheAir"
            )
        largest = longest if self.max_norm is None else self.max_norm
        self._deviation = largest * 10 ** (-self.snr_db / 20) / updates.deltas.shape[1] ** 0.5
        noise = self._deviation * gaussian(updates.deltas, seed, Purpose.CHANNEL_NOISE, plan.index)
        return replace(updates, noise=noise if updates.noise is None else updates.noise + noise)

    @override
    def noise_variance(self, plan: RoundPlan) -> float:
        """Return B^2 / SNR, with B the signal of a client that works most, drawn as often as is expected."""
        signals = np.abs(plan.coefficients) * plan.profiles.accumulation
        counts = np.maximum(1.0, plan.cohort.num_draws * plan.cohort.probabilities)
        drawn = plan.cohort.probabilities > 0
        return float((signals * counts)[drawn].max() ** 2 * 10 ** (-self.snr_db / 10))

    def configure_metrics(self, result: object) -> dict[str, float]:
        """Return the column of a round: the standard deviation of the noise on each coordinate of the sum."""
        return {"channel_noise": self._deviation}
