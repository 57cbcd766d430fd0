"""Who arrives next, event by event, and how often where everybody trains all the time."""

from copy import copy
from dataclasses import replace
from itertools import islice

import numpy as np
from typing_extensions import override

from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import Forecast
from fl_lightning.parts.traits import SamplerTraits, layers
from fl_lightning.samplers import Sampler
from fl_lightning.samplers.selection import Selection, number_of
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import Arrivals, Cohort, IntVector, Profiles, Vector

_TRIED_UPLOADS = 4_000
_TRIED_VALUES = 2_000_000
_TRIED_PROFILES = 64
_TRIED_SEED = 0xA6E


class ArrivalRates(Sampler):
    r"""Reports the share of each client among the uploads of clients that train without a pause.

    .. math:: p_m = \frac{1 / \mathrm{E}[t_m]}{\sum_j 1 / \mathrm{E}[t_j]}

    with t the seconds from one start of a client to the next. Nobody is drawn: the clock decides. So an asynchronous
    server optimises :math:`\Omega \propto p (1-q) c A`, arrival rate times work, and
    :class:`fl_lightning.samplers.Consistent` around this makes it optimise w.
    """

    traits = SamplerTraits(scope="average")

    def __init__(self) -> None:
        self._mean_seconds: Vector = np.empty(0)

    @override
    def start(self, forecast: Forecast) -> None:
        self._mean_seconds = np.mean([profiles.seconds for profiles in forecast()], axis=0)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        rates = 1 / (self._mean_seconds if len(self._mean_seconds) else profiles.seconds)
        return np.asarray(rates / rates.sum(), dtype=np.float64)


class AsynchronousSelection(Remembers, Selection):
    """Lets clients train without waiting for each other; the server steps when enough uploads were sent.

    A job begins with the newest model, takes the seconds that the clock says, and is followed by the next at once. A
    round is one step of the server, made of the next ``clients_per_round`` uploads; the channel loses some of them. A
    client that sends twice before a step trains once, on the model of its last job and with the mean of their steps,
    counts twice and is charged twice. Where everybody trains all the time, the T of a client's jobs go through typical
    rounds of the schedule one after another, because rounds of the server have nothing to do with them.

    Args:
        sampler: :class:`ArrivalRates`, also inside :class:`fl_lightning.samplers.Consistent`: every client trains all
            the time. Any other sampler: whenever a job ends, it draws who gets the next one; who is still busy then
            begins when it is done. As jobs go round in a closed circle, a client's share of the uploads is exactly its
            probability, however slow it is.
        clients_per_round: Size of the buffer, b: uploads in a step of the server, as a number or as a share of the
            clients; 1 is FedAsync.
        concurrency: Jobs at the same time, where the sampler draws; by default as many as there are in a buffer.
    """

    memory = ("sampler", "now", "_client", "_finish", "_started", "_steps", "_busy", "_num_jobs")

    def __init__(
        self, sampler: Sampler, clients_per_round: int | float = 0.3, concurrency: int | float | None = None
    ) -> None:
        super().__init__(sampler, clients_per_round)
        if concurrency is not None and not concurrency > 0:
            raise ValueError(f"concurrency={concurrency} must be a number of jobs or a share of the clients above 0")
        self.concurrency = concurrency
        self.now = 0.0  # seconds on the clock
        self._client: IntVector = np.empty(0, dtype=np.int64)  # of each job in flight
        self._finish: Vector = np.empty(0)  # when it is sent
        self._started: IntVector = np.empty(0, dtype=np.int64)  # after how many rounds its model was made
        self._steps: IntVector = np.empty(0, dtype=np.int64)
        self._busy: Vector = np.empty(0)  # until when each client is busy, (M,)
        self._num_jobs: IntVector = np.empty(0, dtype=np.int64)  # that each client has begun, (M,)
        self._typical: list[tuple[IntVector, Vector]] = []  # T and seconds of typical rounds
        self._counts: IntVector = np.empty(0, dtype=np.int64)
        self._arrivals: Arrivals | None = None
        self._mean_seconds: Vector = np.empty(0)
        self._seen: tuple[IntVector, IntVector, IntVector] | None = None

    @property
    @override
    def traits(self) -> SamplerTraits:
        return replace(self.sampler.traits, asynchronous=True)

    @property
    @override
    def way_of_drawing(self) -> None:
        """The clock decides."""
        return None

    @property
    def everybody(self) -> bool:
        """Whether all clients train all the time."""
        return isinstance(layers(self.sampler)[-1], ArrivalRates)

    def num_jobs(self, num_clients: int) -> int:
        """Return how many jobs are in flight."""
        if self.everybody:
            return num_clients
        if self.concurrency is None:
            return self.num_draws(num_clients)
        return number_of(self.concurrency, num_clients)

    @override
    def start(self, forecast: Forecast) -> None:
        super().start(forecast)
        typical = [(profiles.num_steps, profiles.seconds) for profiles in forecast()]
        self._mean_seconds = np.mean([seconds for _, seconds in typical], axis=0)
        self._typical = typical if self.everybody else []
        self._seen = self._tried(list(islice(forecast(), _TRIED_PROFILES)))

    def _tried(self, typical: list[Profiles]) -> tuple[IntVector, IntVector, IntVector] | None:
        """Return clients, ages and counts of uploads in rounds that are tried out; None where that takes too long.

        The age of an upload depends on who is busy with what: on each client's own seconds, and on its queue of jobs.
        """
        num_clients = typical[0].num_clients
        size = self.num_draws(num_clients)
        num_rounds = min(_TRIED_UPLOADS // size, _TRIED_VALUES // num_clients)
        first = 2 * self.num_jobs(num_clients) // size + 1  # until the first jobs are done
        if num_rounds < 2 * first or any(each.available is not None for each in typical):
            return None
        trial = copy(self)
        trial.now, trial._client = 0.0, np.empty(0, dtype=np.int64)
        seen = []
        for index in range(1, num_rounds + 1):
            trial.arrange(typical[index % len(typical)], index, _TRIED_SEED)
            clients = np.flatnonzero(trial._counts)
            if index > first and trial._arrivals is not None:
                ages = index - 1 - trial._arrivals.started[clients]
                seen.append((clients, ages, trial._counts[clients]))
        clients, ages, counts = (np.concatenate(column) for column in zip(*seen, strict=True))
        return clients, ages, counts

    @override
    def arrange(self, profiles: Profiles, index: int, seed: int) -> IntVector:
        """Find the uploads of a round, and return T of all clients: of those who send, that of their job, (M,)."""
        if profiles.available is not None:
            raise ValueError(
                "AsynchronousSelection knows no deadline: leave loop.clock.deadline out, or use SamplerSelection"
            )
        seconds = profiles.seconds
        rng = generator(seed, Purpose.ARRIVALS, index)
        num_clients, began = profiles.num_clients, self.now
        size = self.num_draws(num_clients)
        cumulated = None if self.everybody else np.cumsum(self.sampler.probabilities(profiles, size))
        if not len(self._client):
            self._begin(profiles, seconds, cumulated, rng)
        counts = np.zeros(num_clients, dtype=np.int64)
        steps = np.zeros(num_clients, dtype=np.int64)
        started = np.full(num_clients, index - 1, dtype=np.int64)
        for place in range(size):
            job = int(np.argmin(self._finish))
            client, self.now = int(self._client[job]), float(self._finish[job])
            counts[client] += 1
            steps[client] += self._steps[job]
            started[client] = self._started[job]
            version = index if place == size - 1 else index - 1  # who completes the buffer gets the new model
            self._next(job, client if cumulated is None else _drawn(cumulated, rng), version, profiles, seconds)
        self._counts = counts
        self._arrivals = self._arrivals_of(started, int(self._started.min()), self.now - began)
        return np.where(counts > 0, np.rint(steps / np.maximum(counts, 1)).astype(np.int64), profiles.num_steps)

    def _begin(self, profiles: Profiles, seconds: Vector, cumulated: Vector | None, rng: np.random.Generator) -> None:
        num_jobs = self.num_jobs(profiles.num_clients)
        self._client = np.arange(num_jobs)
        self._finish = np.zeros(num_jobs)
        self._busy = np.zeros(profiles.num_clients)
        self._num_jobs = np.zeros(profiles.num_clients, dtype=np.int64)
        self._started = np.zeros(num_jobs, dtype=np.int64)
        self._steps = np.zeros(num_jobs, dtype=np.int64)
        for job in range(num_jobs):
            self._next(job, job if cumulated is None else _drawn(cumulated, rng), 0, profiles, seconds)

    def _next(self, job: int, client: int, version: int, profiles: Profiles, seconds: Vector) -> None:
        self._client[job], self._started[job] = client, version
        steps = profiles.num_steps
        if self._typical:
            steps, seconds = self._typical[int(self._num_jobs[client]) % len(self._typical)]
        self._num_jobs[client] += 1
        self._steps[job] = steps[client]
        self._finish[job] = self._busy[client] = max(self.now, self._busy[client]) + seconds[client]

    def _arrivals_of(self, started: IntVector, oldest: int, elapsed: float) -> Arrivals:
        """Return what is known of uploads, with the mean age of each client's: as tried out, or where all is even."""
        expected = self._usual_age(len(started))
        if self._seen is not None:
            clients, ages, counts = self._seen
            number = np.bincount(clients, counts, minlength=len(started))
            total = np.bincount(clients, counts * ages, minlength=len(started))
            expected = np.divide(total, number, out=expected, where=number > 0)
        return Arrivals(started=started, oldest=oldest, elapsed=elapsed, expected=expected, seen=self._seen)

    def _usual_age(self, num_clients: int) -> Vector:
        """Return the mean age where uploads come evenly, (M,)."""
        seconds = self._mean_seconds if len(self._mean_seconds) else np.ones(num_clients)
        if self.everybody:
            others = float((1 / seconds).sum()) - 1 / seconds
            return np.asarray(others * seconds / self.num_draws(num_clients))
        jobs_per_step = self.num_jobs(num_clients) / self.num_draws(num_clients)
        return np.asarray(jobs_per_step * seconds / seconds.mean())

    @override
    def expected_cohort(self, profiles: Profiles) -> Cohort:
        arrivals = self._arrivals_of(np.zeros(profiles.num_clients, dtype=np.int64), 0, 0.0)
        return replace(super().expected_cohort(profiles), arrivals=arrivals)

    @override
    def configure_cohort(self, expected: Cohort, rng: np.random.Generator) -> Cohort:
        """Return who sends in this round, as :meth:`arrange` has found it."""
        return replace(expected, counts=self._counts, arrivals=self._arrivals)


def _drawn(cumulated: Vector, rng: np.random.Generator) -> int:
    return int(min(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"), len(cumulated) - 1))
