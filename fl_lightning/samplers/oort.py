"""Oort and PyramidFL: clients from whom the model can learn much, and soon."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.hics import capped_shares
from fl_lightning.samplers.sampler import Drawing, Sampler, WithoutReplacement
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector


class UtilityBased(Sampler):
    r"""Draws by loss and speed, and keeps some draws for clients it does not know (Oort).

    .. math:: U_m = \Bigl( \frac{u_m - \min u}{\max u - \min u} + \sqrt{\frac{0.1 \log t}{t_m}} \Bigr)
        \Bigl( \frac{D}{d_m} \Bigr)^{\alpha [d_m > D]}, \qquad u_m = w_m F_m

    with F the loss that a client last uploaded, :math:`t_m` the round of that, d the seconds that a round takes it and
    D the quantile of d that is preferred. :math:`(1 - \epsilon) K` draws go to the known clients, in proportion to U
    among those of at least a share of the U of the last one that would fit; the others to unknown ones, in proportion
    to w and speed. :math:`\epsilon` decays. D grows when the utility of the drawn stagnates. The selected are averaged
    as they are: the objective depends on the data. Read from the authors' code; u there takes the square root of the
    mean squared loss of the examples, of which a client here uploads the mean.

    PyramidFL (Li et al. 2022) asks clients for more work where they would wait for the slowest:

    .. math:: T_m' = \min\Bigl(O_m, \Bigl\lfloor T_m \min\Bigl(b, \frac{D'}{d_m}\Bigr) \Bigr\rfloor\Bigr)
        \ \mathrm{where}\ d_m < D', \qquad D' = \mathrm{E}\bigl[\max_{m\ \mathrm{drawn}} d_m\bigr]

    with T the steps that all are asked for (``loop.max_local_steps``; without it nobody has more to give), O those that
    a client offers, and D' as if clients were drawn independently. The authors' code multiplies epochs; that it lets
    clients of little utility upload a part of the model is left out (:mod:`fl_lightning.uploads` has such steps).

    Args:
        exploration: epsilon in the first round.
        decay: Factor on it per round.
        least_exploration: Where the decay ends.
        penalty: alpha.
        preferred: D at first, as a share of the clients that are at most as slow.
        cut_off: The share of U from which on clients are in the choice.
        clip: Quantile of u above which no client's counts.
        pace: Rounds after which D is looked at.
        most_work: b, at least 1, which is Oort: nobody is asked for more.
    """

    traits = SamplerTraits(learns=True, looks_at_updates=True, needs_seconds=True, scope="none")
    drawing: Drawing | None = WithoutReplacement()
    memory = ("_losses", "_when", "_finished", "_preferred", "_gains")

    def __init__(
        self,
        exploration: float = 0.9,
        decay: float = 0.98,
        least_exploration: float = 0.3,
        penalty: float = 2.0,
        preferred: float = 0.3,
        cut_off: float = 0.7,
        clip: float = 0.9,
        pace: int = 20,
        most_work: float = 1.0,
    ) -> None:
        shares = {"exploration": exploration, "decay": decay, "preferred": preferred, "cut_off": cut_off, "clip": clip}
        for name, value in shares.items():
            if not 0 < value <= 1:
                raise ValueError(f"{name}={value} must be above 0 and at most 1")
        if not 0 <= least_exploration <= exploration or not penalty >= 0 or pace < 1 or not 1 <= most_work < np.inf:
            raise ValueError(
                f"least_exploration={least_exploration} must be in [0, exploration={exploration}], penalty={penalty} "
                f"must not be negative, pace={pace} must be at least 1, and most_work={most_work} a number from 1 up"
            )
        self.exploration, self.decay, self.least_exploration = exploration, decay, least_exploration
        self.penalty, self.cut_off = penalty, cut_off
        self.clip, self.pace = clip, pace
        self.most_work = most_work
        self._preferred = preferred
        self._losses: Vector = np.empty(0)  # NaN of those not known
        self._when: IntVector = np.empty(0, dtype=np.int64)
        self._gains: Vector = np.empty(0)  # utility of the drawn, of each round
        self._finished = 0

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        weights, seconds = profiles.weights, profiles.seconds
        there = weights > 0
        total = min(num_draws, int(np.count_nonzero(there)))
        losses = self._losses if len(self._losses) else np.full(len(weights), np.nan)
        known, preferred = there & ~np.isnan(losses), np.quantile(seconds, self._preferred)
        speed = np.minimum(1.0, preferred / np.maximum(seconds, 1e-9)) ** self.penalty
        unknown = np.where(there & ~known, weights * speed, 0.0)
        share = max(self.exploration * self.decay**self._finished, self.least_exploration)
        new = min(share * total if known.any() else total, float(np.count_nonzero(unknown)))
        new = max(new, total - float(np.count_nonzero(known)))
        amounts = capped_shares(unknown, np.ones(len(weights)), new) if new > 0 else np.zeros(len(weights))
        if total > new:
            scores = np.zeros(len(weights))
            scores[known] = self._scores((weights * losses)[known], self._when[known]) * speed[known]
            last = np.sort(scores[known])[::-1][min(int(total - new), int(np.count_nonzero(known))) - 1]
            pool = np.where(known & (scores >= self.cut_off * last), np.maximum(scores, 1e-9), 0.0)
            pool = pool if np.count_nonzero(pool) >= total - new else np.where(known, np.maximum(scores, 1e-9), 0.0)
            amounts = amounts + capped_shares(pool, np.ones(len(weights)), total - new)
        return amounts / amounts.sum()

    @override
    def asked_steps(self, profiles: Profiles, num_draws: int) -> IntVector:
        if self.most_work == 1:
            return profiles.num_steps
        seconds = profiles.seconds
        order = np.argsort(-seconds, kind="stable")  # the slowest first
        drawn = np.minimum(1.0, num_draws * self.probabilities(profiles, num_draws))[order]
        slowest = drawn * np.cumprod(np.append(1.0, 1 - drawn[:-1]))  # drawn, and nobody slower
        length = float(slowest @ seconds[order] / slowest.sum())
        more = profiles.num_steps * np.clip(length / np.maximum(seconds, 1e-9), 1.0, self.most_work)
        return np.minimum(more.astype(np.int64), profiles.conditions.offered_steps)

    def _scores(self, utilities: Vector, when: IntVector) -> Vector:
        clipped = np.minimum(utilities, np.quantile(utilities, self.clip, method="higher"))
        lowest = utilities.min()
        spread = max(float(utilities.max() - lowest), 1e-12)
        return (clipped - lowest) / spread + np.sqrt(0.1 * np.log(self._finished + 1) / when)

    @override
    def observe(self, result: RoundResult) -> None:
        profiles, updates = result.plan.profiles, result.updates
        if not len(self._losses):
            self._losses = np.full(profiles.num_clients, np.nan)
            self._when = np.zeros(profiles.num_clients, dtype=np.int64)
        sound = np.isfinite(updates.losses) & (result.delivered[updates.clients] > 0)
        clients, losses = updates.clients[sound], updates.losses[sound]
        self._losses[clients], self._when[clients] = losses, result.plan.index
        self._finished = result.plan.index
        self._gains = np.append(self._gains, float(profiles.weights[clients] @ losses))[-2 * self.pace :]
        if len(self._gains) == 2 * self.pace and self._finished % self.pace == 0:
            before, now = self._gains[: self.pace].sum(), self._gains[self.pace :].sum()
            if abs(now - before) <= 0.1 * before:
                self._preferred = min(1.0, self._preferred + 0.05)
            elif abs(now - before) >= 5 * before:
                self._preferred = max(0.05, self._preferred - 0.05)
