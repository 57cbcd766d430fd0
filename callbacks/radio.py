"""RayleighOutage: failure rates from where clients are and how strong their radio is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_lightning.seeding import Purpose
from fl_lightning.system.availability import uniforms
from fl_lightning.types import Vector


def rayleigh_outage(
    distances: npt.ArrayLike,
    cell_radius: float,
    edge_snr_db: float,
    threshold_db: float,
    path_loss_exponent: float = 3.5,
    shadowing_db: npt.ArrayLike = 0.0,
) -> Vector:
    r"""Return the probability that the signal fades below what decoding needs.

    With path loss and shadowing the mean signal-to-noise ratio is
    :math:`\bar\gamma_m = \gamma_\mathrm{edge} - 10 \alpha \log_{10}(d_m / d_\mathrm{edge}) + S_m` in dB; under Rayleigh
    fading the ratio itself is exponentially distributed around it, so

    .. math:: q_m = 1 - e^{-\gamma_\mathrm{threshold} / \bar\gamma_m}

    Args:
        distances: d, of each client from the base station, (M,).
        cell_radius: Distance at which the mean ratio is ``edge_snr_db``.
        edge_snr_db: Mean ratio at the edge of the cell.
        threshold_db: Ratio below which an upload is lost.
        path_loss_exponent: alpha; 2 in free space, 3 to 4 in towns.
        shadowing_db: S, what obstacles add to or take from each client, (M,).

    >>> rayleigh_outage([50, 100], cell_radius=100, edge_snr_db=10, threshold_db=0, path_loss_exponent=2).round(4)
    array([0.0247, 0.0952])
    """
    d = np.asarray(distances, dtype=np.float64)
    if not (np.isfinite(d).all() and (d > 0).all()):
        raise ValueError("distances must be positive numbers: nobody is at the antenna itself")
    mean_db = edge_snr_db - 10 * path_loss_exponent * np.log10(d / cell_radius) + np.asarray(shadowing_db)
    return -np.expm1(-(10 ** ((threshold_db - mean_db) / 10)))


@dataclass(frozen=True, kw_only=True)
class RayleighOutage:
    """Failure rates of clients in a radio cell; give it to the schedule in place of numbers.

    So the sampler knows the rates, and :class:`ChannelFailures` loses uploads by them: fading is independent from round
    to round, which makes a lost upload a Bernoulli event of the outage probability.

    Args:
        edge_snr_db: Mean signal-to-noise ratio at the edge of the cell.
        threshold_db: Ratio below which an upload is lost.
        cell_radius: Of the cell.
        min_distance: Nobody is nearer than this.
        distances: Of each client; by default clients are spread evenly over the area of the cell, once in a run.
        path_loss_exponent: 2 in free space, 3 to 4 in towns.
        shadowing_db: Standard deviation of what obstacles do to a client's signal.
        dynamic: Whether shadowing is drawn anew in each round; otherwise once.
        max_failure_rate: Nobody is worse: a client whose uploads never arrive cannot be compensated.
    """

    edge_snr_db: float = 6.0
    threshold_db: float = 3.0
    cell_radius: float = 500.0
    min_distance: float = 25.0
    distances: list[float] | None = None
    path_loss_exponent: float = 3.5
    shadowing_db: float = 0.0
    dynamic: bool = True
    max_failure_rate: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.min_distance < self.cell_radius:
            raise ValueError(
                f"min_distance={self.min_distance} must be above 0 and below cell_radius={self.cell_radius}"
            )
        if self.distances is not None and not all(distance > 0 for distance in self.distances):
            raise ValueError(f"distances={self.distances} must be positive")
        if not self.shadowing_db >= 0 or not 0 < self.max_failure_rate < 1:
            raise ValueError(
                f"shadowing_db={self.shadowing_db} must be at least 0 and max_failure_rate={self.max_failure_rate} "
                "between 0 and 1"
            )

    def __call__(self, num_clients: int, round_index: int, seed: int) -> Vector:
        """Return q of each client in a round, (M,)."""
        if self.distances is not None and len(self.distances) != num_clients:
            raise ValueError(f"distances has {len(self.distances)} entries, but there are {num_clients} clients")
        # Not from the generator of the same purpose, which draws T.
        area = uniforms(seed, Purpose.CONDITIONS, 0, num_clients, 3)[:, 0]
        near, far = self.min_distance**2, self.cell_radius**2
        distances = np.sqrt(near + area * (far - near)) if self.distances is None else np.asarray(self.distances)
        drawn = uniforms(seed, Purpose.CONDITIONS, round_index if self.dynamic else 0, num_clients, 3)
        normal = np.sqrt(-2 * np.log1p(-drawn[:, 1])) * np.cos(2 * np.pi * drawn[:, 2])  # Box and Muller
        rates = rayleigh_outage(
            distances,
            self.cell_radius,
            self.edge_snr_db,
            self.threshold_db,
            self.path_loss_exponent,
            self.shadowing_db * normal,
        )
        return np.minimum(rates, self.max_failure_rate)
