"""The basis trick: clients with quadratic losses at unit vectors, so that the model is the weights it optimises.

F_m(x) = |x - e_m|^2 / 2. T steps of SGD from x0, each gradient shifted by s, end where x0 - x_T = B_m (x0 - e_m + s)
with B_m = 1 - (1 - eta)^T; a proximal term replaces this by (1 - (1 - eta (1 + mu))^T) / (1 + mu). The optimum of sum_m
Omega_m F_m is the vector Omega itself. Real samplers, channels and aggregators are driven; only local training is
replaced by this closed form.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from fl_lightning.aggregators import Aggregator
from fl_lightning.callbacks import ChannelFailures, SamplerSelection
from fl_lightning.parts.protocols import PLAIN, Handout
from fl_lightning.samplers import Sampler, Systematic, WithReplacement
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import Profiles, RoundResult, Updates
from fl_lightning.uploads import Uploads
from made import made_profiles
from systems import made_plan

Formula = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
_BURN_IN_SCALE = 6.0


@dataclass(frozen=True)
class System:
    """A federation of a few kinds of clients.

    With ``copies`` R there are R clients of each kind and R times as many draws: one round then averages over R, which
    saves rounds, but hides biases that vanish as the number of draws grows.
    """

    weights: np.ndarray  # of each kind, sums to 1
    num_draws: int  # for one copy
    learning_rate: float
    min_steps: np.ndarray  # T is uniform on min_steps ... max_steps in each round
    max_steps: np.ndarray
    min_failure: np.ndarray  # q is uniform on [min_failure, max_failure] in each round
    max_failure: np.ndarray
    proximal: float = 0.0  # mu of FedProx
    server_scale: float = 1.0  # factor on the global step
    limit: int | None = None  # the most steps that anybody is asked for

    @property
    def num_kinds(self) -> int:
        return len(self.weights)

    def conditions(self, num_rounds: int, copies: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """T and q of all rounds, each (rounds, kinds * copies)."""
        rng = np.random.default_rng([seed, 99])
        shape = (num_rounds, copies, self.num_kinds)
        steps = rng.integers(self.min_steps, self.max_steps, shape, endpoint=True)
        steps = steps if self.limit is None else np.minimum(steps, self.limit)
        rates = rng.uniform(self.min_failure, self.max_failure, shape)
        return steps.reshape(num_rounds, -1), rates.reshape(num_rounds, -1)

    def accumulation(self, num_steps: np.ndarray) -> np.ndarray:
        """A, what the server reckons with: the limit of the gain for flat losses."""
        return _geometric_sum(num_steps, self.learning_rate * self.proximal)

    def gain(self, num_steps: np.ndarray) -> np.ndarray:
        """B / eta, the factor on the client's gradient at its start in its update."""
        return _geometric_sum(num_steps, self.learning_rate * (1 + self.proximal))

    def profiles(self, num_rounds: int, copies: int, seed: int) -> Iterator[Profiles]:
        weights = np.tile(self.weights / copies, copies)
        for steps, rates in zip(*self.conditions(num_rounds, copies, seed), strict=True):
            yield made_profiles(
                weights=weights, num_steps=steps, failure_rates=rates, accumulation=self.accumulation(steps)
            )


def _independent(sampler):
    """Return the paper's independent draws, for samplers without a way of their own."""
    return WithReplacement() if isinstance(sampler.drawing, Systematic) else None


def _geometric_sum(num_steps: np.ndarray, decay: float) -> np.ndarray:
    """Return sum_{t < T} (1 - decay)^t."""
    return (1 - (1 - decay) ** num_steps) / decay if decay else num_steps.astype(np.float64)


def made_labels(num_clients: int) -> np.ndarray:
    """How many examples of three classes each client says it has, (M, 3)."""
    return 1 + 8 * np.eye(3, dtype=np.int64)[np.arange(num_clients) % 3]


class QuadraticProbe:
    """Answers what samplers ask before they draw."""

    def __init__(self, weights: torch.Tensor, targets: torch.Tensor, num_steps: np.ndarray, gains: torch.Tensor):
        self.weights, self.targets, self.client_steps, self.gains = weights, targets, num_steps, gains

    def losses(self, clients: np.ndarray) -> np.ndarray:
        return (0.5 * (self.gradients(clients) ** 2).sum(dim=1)).numpy()

    def gradients(self, clients: np.ndarray) -> torch.Tensor:
        return self.weights - self.targets[torch.from_numpy(clients)]

    def label_counts(self) -> np.ndarray:
        return made_labels(len(self.targets))

    def updates(self, clients: np.ndarray) -> Updates:
        gains = self.gains[torch.from_numpy(clients)]
        return _updates(clients, gains[:, None] * self.gradients(clients), self.client_steps)


def _updates(clients: np.ndarray, deltas: torch.Tensor, num_steps: np.ndarray) -> Updates:
    return Updates(
        clients=clients,
        deltas=deltas,
        buffers=deltas.new_empty((len(clients), 0)),
        num_steps=num_steps[clients],
        losses=np.zeros(len(clients)),
    )


def _gradients(handout: Handout, clients: np.ndarray, weights: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return x0 - e_m + s of each client that trains; asks for start and shift only where they are not the default."""
    gradients = weights - targets[torch.from_numpy(clients)]
    if handout.start is not PLAIN.start and len(clients):
        gradients += torch.stack([handout.start(client, weights) for client in clients.tolist()]) - weights
    if handout.gradient_shift is not PLAIN.gradient_shift and len(clients):
        gradients += torch.stack([handout.gradient_shift(client) for client in clients.tolist()])
    return gradients


def measured_weights(
    system: System,
    sampler: Sampler,
    aggregator: Aggregator,
    num_rounds: int,
    copies: int = 1,
    seed: int = 0,
    uploads: Uploads | None = None,
) -> np.ndarray:
    """Return the time average of the model, (kinds,).

    The first third of the rounds is left out and makes longer steps, so that the start is forgotten.
    """
    targets = torch.eye(system.num_kinds, dtype=torch.float64).repeat(copies, 1)
    selection, channel = SamplerSelection(sampler, system.num_draws * copies, _independent(sampler)), ChannelFailures()
    selection.start(lambda: system.profiles(256, copies, seed + 1000))
    model = torch.full((system.num_kinds,), 1 / system.num_kinds, dtype=torch.float64)
    aggregator.setup(len(targets), model)
    uploads = uploads or Uploads()
    uploads.setup(len(targets), model)
    held_back = any(getattr(step, "error_feedback", False) for step in uploads.steps)
    total, burn_in = torch.zeros_like(model), num_rounds // 3
    for index, profiles in enumerate(system.profiles(num_rounds, copies, seed), start=1):
        gains = torch.from_numpy(system.gain(profiles.num_steps))
        probe = QuadraticProbe(model, targets, profiles.num_steps, gains)
        rng = generator(seed, Purpose.SAMPLING, index)
        selection.ask(profiles, probe, rng)
        cohort = selection.configure_cohort(selection.expected_cohort(profiles), rng)
        coefficients = aggregator.coefficients(profiles, cohort)
        scale = system.server_scale * (_BURN_IN_SCALE if index <= burn_in else 1)
        plan = made_plan(index, profiles, cohort, coefficients, system.learning_rate, scale)
        delivered = channel.configure_delivery(plan, seed)
        clients = aggregator.trains(plan, delivered)
        deltas = gains[torch.from_numpy(clients)][:, None] * _gradients(
            aggregator.handout(plan), clients, model, targets
        )
        updates = replace(_updates(clients, deltas, profiles.num_steps), losses=probe.losses(clients))
        if index > burn_in or not held_back:  # what is held back is in units of steps, which are longer before
            updates = uploads(updates, plan, seed)
        model = aggregator(model, updates, delivered, plan)
        sampler.observe(RoundResult(plan=plan, delivered=delivered, updates=updates, metrics={}, training_seconds=0.0))
        if index > burn_in:
            total += model
    return (total / (num_rounds - burn_in)).numpy()


def reported_weights(
    system: System, sampler: Sampler, aggregator: Aggregator, num_rounds: int = 200, copies: int = 1, seed: int = 0
) -> np.ndarray:
    """Return Omega as sampler and aggregator report it before any draw, over all rounds, (kinds,)."""
    selection = SamplerSelection(sampler, system.num_draws * copies, _independent(sampler))
    selection.start(lambda: system.profiles(256, copies, seed + 1000))
    total, targets = np.zeros(system.num_kinds * copies), torch.eye(system.num_kinds * copies, dtype=torch.float64)
    for profiles in system.profiles(num_rounds, copies, seed):
        if selection.traits.asks == "numbers" and not sampler.traits.needs_all_updates:
            gains = torch.from_numpy(system.gain(profiles.num_steps))
            probe = QuadraticProbe(targets.mean(dim=0), targets, profiles.num_steps, gains)
            selection.ask(profiles, probe, np.random.default_rng(0))
        cohort = selection.expected_cohort(profiles)
        plan = made_plan(1, profiles, cohort, aggregator.coefficients(profiles, cohort), system.learning_rate)
        total += plan.expected.contribution
    kinds = total.reshape(copies, -1).sum(axis=0)
    return kinds / kinds.sum()


def predicted_weights(
    system: System, omega: Formula, infinitesimal: bool, copies: int, num_rounds: int = 200, seed: int = 0
) -> np.ndarray:
    """Return the mean over the rounds of a formula in w, q, A and gain, normalised, (kinds,).

    ``infinitesimal`` takes the gain at vanishing learning rate, which is A.
    """
    steps, rates = system.conditions(num_rounds, copies, seed)
    weights, accumulation = np.tile(system.weights / copies, copies), system.accumulation(steps)
    gains = accumulation if infinitesimal else system.gain(steps)
    amounts = np.broadcast_to(omega(weights, rates, accumulation, gains), steps.shape)
    kinds = amounts.mean(axis=0).reshape(copies, -1).sum(axis=0)
    return kinds / kinds.sum()
