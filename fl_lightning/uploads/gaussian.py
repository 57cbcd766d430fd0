"""Client-level differential privacy: clipped updates, Gaussian noise, and an account of what was told."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators import Aggregator
from fl_lightning.aggregators.secure import sum_of
from fl_lightning.parts.bases import Sampling
from fl_lightning.parts.traits import UploadTraits, layers
from fl_lightning.samplers.sampler import Drawing
from fl_lightning.samplers.selection import Selection
from fl_lightning.secure.primitives import library
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, RoundPlan, RoundResult, Updates, Vector
from fl_lightning.uploads.accounting import Accountant, noise_for, told_by_round
from fl_lightning.uploads.chain import Upload
from fl_lightning.uploads.clipping import Clip
from fl_lightning.uploads.hidden import check_neighbours, check_unprotected
from fl_lightning.uploads.noise import Noise

if TYPE_CHECKING:
    from fl_lightning.planning import Planner

Place = Literal["server", "clients", "distributed"]
_LOG = logging.getLogger("fl_lightning")
_FORECAST_ROWS = 20_000  # clients times rounds that are looked at to find the noise


class GaussianMechanism(Upload):
    r"""Clips what each client adds to the sum and hides it behind Gaussian noise (DP-FedAvg, McMahan et al. 2018).

    .. math:: X \leftarrow X - \frac{\eta}{K} \Big( \sum_m n_m c_m f_m \Delta_m + \nu \Big), \qquad
        \nu \sim \mathcal{N}(0, z^2 S^2 I), \qquad S = \max_m S_m

    with :math:`S_m` the longest vector that a client may add, :math:`C` or :math:`C c_m A_m`, see :class:`Clip`, and z
    the noise multiplier. The accountant follows each client with its own probability, number of draws and
    :math:`S_m / S`, and reports epsilon of the worst one in each round (column ``epsilon``). Two federations are
    neighbours if one client adds nothing in one of them; weights, work, links and probabilities are public.
    ``docs/private.md`` has the derivation. Noise and draws come from a key that the operating system's randomness makes
    for each run. A recorded run keeps it in its folder, in ``noise.key``, which only its owner can read.

    Args:
        clip: Bounds the updates.
        epsilon: Find the noise with which all rounds of the run together stay within this; the run ends early where the
            forecast was wrong. Give this or ``noise_multiplier``.
        noise_multiplier: z.
        delta: Of the guarantee; M^-1.1 by default.
        place: ``server``: noise on the sum, of which nobody sees the parts. ``clients``: each client adds noise to what
            it sends, of standard deviation :math:`z S_m`, and needs to trust nobody. ``distributed``: under
            :class:`fl_lightning.aggregators.SecureSum` with a threshold of t clients, each adds a share of the noise,
            of standard deviation :math:`z S / \sqrt{t}`, so that any sum that is seen has at least :math:`z S`; who
            is lost takes its share along.
        count_noise: With an adaptive clip, standard deviation of the noise on the number of short updates; K / 20 by
            default, but at least 3.
        key: A number in place of the secret key, so that a study can be repeated. Then whoever knows it can recompute
            the noise and take it off: nothing is private, and the summary says so.
        keep_uncovered: Also write what epsilon does not cover (training losses, counts of draws, clip factors, metrics
            of single clients), to ``not_covered.csv`` and ``not_covered_clients.csv``, which only their owner can read.
            Whoever sees these files learns more about a client than epsilon says.
    """

    memory = ("clip", "multiplier", "account")

    def __init__(
        self,
        clip: Clip,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        place: Place = "server",
        count_noise: float | None = None,
        key: int | None = None,
        keep_uncovered: bool = False,
    ) -> None:
        one_of("place", place, Place)
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError(f"give either epsilon or noise_multiplier, not {'neither' if epsilon is None else 'both'}")
        for name, value in (("epsilon", epsilon), ("noise_multiplier", noise_multiplier), ("count_noise", count_noise)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name}={value} must be a positive number")
        if clip.quantile is not None and place != "server":
            raise ValueError(f"place={place!r} needs a fixed clip: leave out its quantile, or use place='server'")
        self.clip, self.epsilon, self.delta, self.place = clip, epsilon, delta, place
        self.multiplier, self.count_noise = noise_multiplier, count_noise
        self.account = Accountant(_default_delta(2) if delta is None else delta)
        self.noise: Noise = Noise(key)
        self.keep_uncovered = keep_uncovered
        self._drawing: Any = None
        self._num_shares = 1  # that make the whole noise, where it is distributed

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.clip.setup(num_clients, weights)
        self.account = Accountant(_default_delta(num_clients) if self.delta is None else self.delta)

    @property
    @override
    def traits(self) -> UploadTraits:
        at_server = self.place == "server"
        secret_draws = at_server and bool(self._drawing is None or self._drawing.independent)
        return UploadTraits(
            hides_updates=at_server,
            private=True,
            secret_draws=secret_draws,
            keeps_uncovered=self.keep_uncovered,
            effect=self.clip.traits.effect,
        )

    @property
    @override
    def epsilon_kind(self) -> str:
        return self.account.kind

    @override
    def start(self, planner: "Planner", num_buffers: int) -> None:
        """Refuse a run without a sound bound; find the noise where an epsilon is wanted."""
        library()  # of which the noise is made
        name, algorithm = type(self).__name__, planner.algorithm
        check_unprotected(algorithm.sampling, num_buffers, name)
        if planner.system.clock.take_first is not None:
            raise ValueError(f"{name} has no bound where others decide who is in time: leave out loop.clock.take_first")
        check_neighbours(algorithm.uploads.steps, self)
        if self.place == "distributed":
            self._num_shares = least_arrivals(algorithm.aggregator)
        self.begin(drawing_of(algorithm.sampling), self._forecast(planner), planner.seed)

    def on_federation_start(self, loop: Any) -> None:
        """Give all processes the key of the first, which a resumed run has found in its folder."""
        if loop.fabric.world_size > 1:
            self.noise.key = loop.fabric.broadcast(self.noise.key)

    def _forecast(self, planner: "Planner") -> list[tuple[RoundPlan, int]]:
        """Return undrawn plans of the rounds to come, or of some of them, and how many rounds each stands for."""
        if self.multiplier is not None or planner.rounds is None:
            return []
        most = min(planner.rounds, max(1, _FORECAST_ROWS // len(planner.weights)))
        parts = np.array_split(np.arange(1, planner.rounds + 1), most)
        indices = [(int(part[len(part) // 2]), len(part)) for part in parts]
        return [(planner.undrawn(planner.profiles(planner.conditions(i)), i), times) for i, times in indices]

    def begin(self, drawing: Any, forecast: Sequence[tuple[RoundPlan, int]] = (), seed: int = 0) -> None:
        """Set how the draws are made, take a new key, and find the noise from plans of the rounds to come."""
        self.noise.renew(seed)
        self._drawing = drawing
        if self.multiplier is None and self.epsilon is not None:

            def reached(multiplier: float) -> float:
                account = Accountant(self.account.delta)
                for plan, times in forecast:
                    account.add(self._told(plan, multiplier), times)
                return account.epsilon

            self.multiplier = noise_for(self.epsilon, reached)

    def _told(self, plan: RoundPlan, multiplier: float) -> IntVector:
        """Return what a round tells about each client."""
        cohort, delta = plan.cohort, self.account.delta
        if self.place == "clients":  # each sends once, however often it was drawn
            ratios = np.full(len(cohort.probabilities), 1 / multiplier)
            return told_by_round(self._drawing, cohort, ratios, delta, shown=True, once=True)
        units = self.clip.units(plan)
        ratios = units / (multiplier * _largest(units, cohort.probabilities))
        fixed = 0.0 if self.clip.quantile is None else (0.5 / self._count_deviation(plan)) ** 2
        shown = self.place == "distributed"  # the server of a secure sum knows who takes part
        return told_by_round(self._drawing, cohort, ratios, delta, fixed, shown)

    def _count_deviation(self, plan: RoundPlan) -> float:
        return max(3.0, plan.cohort.num_draws / 20) if self.count_noise is None else self.count_noise

    @override
    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        if self.multiplier is None:
            raise ValueError("the noise is not known yet: call begin(drawing, forecast) first")
        bound, units = self.clip.norm, self.clip.units(plan)
        clipped, inside = self.clip.clipped(updates, plan)
        if self.clip.quantile is not None:
            self._adapt(inside, plan)
        if self.place == "clients":
            return self._noisy_rows(clipped, self.multiplier * bound * units, plan)
        deviation = self.multiplier * bound * _largest(units, plan.cohort.probabilities)
        if self.place == "distributed":
            shares = np.full(len(units), deviation / self._num_shares**0.5)
            return self._noisy_rows(clipped, shares / np.maximum(1, plan.cohort.counts), plan)
        noise = deviation * self.noise.like(updates.deltas, plan.index)
        return replace(clipped, noise=noise if updates.noise is None else updates.noise + noise)

    def _adapt(self, inside: Any, plan: RoundPlan) -> None:
        """Move the bound by a noisy count of short updates, each of which counts as plus or minus one half."""
        luck = float(self.noise.numbers(1, plan.index, "count")[0])
        total = float((inside - 0.5).sum()) + self._count_deviation(plan) * luck
        self.clip.adapt(0.5 + total / plan.cohort.num_draws)

    def _noisy_rows(self, updates: Updates, deviations: Vector, plan: RoundPlan) -> Updates:
        """Add noise to what each client sends, c Delta, given its deviation for each client."""
        rows, factors = updates.deltas.clone(), np.abs(plan.coefficients)
        for row, client in enumerate(updates.clients.tolist()):
            if factors[client] == 0 and self.place == "distributed":
                raise ValueError(
                    f"client {client} has the factor 0 and cannot add its share of the noise: do not draw it"
                )
            if factors[client] > 0:
                noise = self.noise.like(rows, plan.index, f"client {client}")
                rows[row] += deviations[client] / factors[client] * noise
        return replace(updates, deltas=rows)

    @override
    def measured_factors(self) -> Vector | None:
        return self.clip.measured_factors()

    def configure_metrics(self, result: RoundResult) -> dict[str, float]:
        """Account for the round; return its columns: epsilon so far, and those of the clip."""
        self.account.add(self._told(result.plan, float(self.multiplier or 0)))
        privacy_so_far = {"epsilon": self.account.epsilon, "delta": self.account.delta}
        return privacy_so_far | {"noise_multiplier": float(self.multiplier or 0)} | self.clip.configure_metrics(result)

    @override
    def allows(self, plan: RoundPlan) -> bool:
        """Return whether epsilon lasts for a round: one that the forecast did not know may be too much."""
        if self.epsilon is None or self.multiplier is None:
            return True
        lasts = self.account.epsilon_with(self._told(plan, self.multiplier)) <= self.epsilon * (1 + 1e-9)
        if not lasts:
            _LOG.warning("round %d would exceed epsilon=%g: the run ends here", plan.index, self.epsilon)
        return lasts


def drawing_of(sampling: Sampling) -> Drawing:
    """Return how a sampling makes its draws, if it knows the probabilities of the counts.

    Raises:
        ValueError: If it does not: then nothing is known about a client's share in a round.
    """
    drawing = sampling.way_of_drawing if isinstance(sampling, Selection) else None
    if drawing is None or drawing.distribution(np.ones(1), 1) is None:
        waits = not sampling.traits.asynchronous
        named = drawing or (layers(sampling)[:2][-1] if waits else sampling)
        name = type(named).__name__
        raise ValueError(
            f"{name} does not tell how often a client is drawn, so there is no epsilon: use "
            "loop.sampling.drawing fl_lightning.samplers.Independent, WithReplacement or Systematic"
        )
    return drawing


def least_arrivals(aggregator: Aggregator) -> int:
    """Return how many clients must arrive before anybody sees a sum.

    Raises:
        ValueError: If single updates are seen, or if the number depends on who is drawn.
    """
    hidden = sum_of(aggregator)
    if hidden is None:
        raise ValueError(
            "place='distributed' hides an update behind the noise of others, which needs a sum that nobody sees the "
            "parts of: use loop.aggregator fl_lightning.aggregators.SecureSum, or place='clients'"
        )
    if isinstance(hidden.threshold, float) and not hidden.threshold.is_integer():
        raise ValueError(
            f"threshold={hidden.threshold} is a share of those who are drawn, but each must know beforehand how "
            "much noise to add: give loop.aggregator.threshold as a number of clients"
        )
    return max(2, int(hidden.threshold))


def _default_delta(num_clients: int) -> float:
    """Return M^-1.1, as is usual for clients, which is below 1 / M.

    >>> round(_default_delta(1000), 6)
    0.000501
    """
    return float(max(num_clients, 2) ** -1.1)


def _largest(units: Vector, probabilities: Vector) -> float:
    return float(units[probabilities > 0].max())


def gaussian(like: torch.Tensor, seed: int, purpose: Purpose, round_index: int, client: int = 0) -> torch.Tensor:
    """Return standard normal numbers as long as the rows of a matrix, the same on every device, (d,)."""
    stream = torch.Generator().manual_seed(client_seed(seed, purpose, round_index, client))
    return torch.randn(like.shape[1], generator=stream).to(like)
