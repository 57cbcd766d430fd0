"""The basis trick: clients with quadratic losses at unit vectors, so that the model is the weights it optimises.

F_m(x) = |x - e_m|^2 / 2. T steps of plain SGD from x0, each gradient shifted by s, end where
x0 - x_T = B_m (x0 - e_m + s) with B_m = 1 - (1 - eta)^T. The optimum of sum_m Omega_m F_m is the vector Omega itself.
Real samplers, channels and aggregators are driven; only local training is replaced by this closed form.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fl_lightning.aggregators import Aggregator
from fl_lightning.callbacks import ChannelFailures, SamplerSelection
from fl_lightning.samplers import Sampler
from fl_lightning.types import Conditions, Profiles, RoundPlan, RoundResult, Updates

Environment = Callable[
    [np.random.Generator], tuple[np.ndarray, np.ndarray]
]  # draws T and q of one kind of clients each


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

    @property
    def num_kinds(self) -> int:
        return len(self.weights)

    def conditions(self, num_rounds: int, copies: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """T and q of all rounds, each (rounds, kinds * copies)."""
        rng = np.random.default_rng([seed, 99])
        shape = (num_rounds, copies, self.num_kinds)
        steps = rng.integers(self.min_steps, self.max_steps, shape, endpoint=True)
        rates = rng.uniform(self.min_failure, self.max_failure, shape)
        return steps.reshape(num_rounds, -1), rates.reshape(num_rounds, -1)


def gain(num_steps: np.ndarray, learning_rate: float) -> np.ndarray:
    """B / eta: how much of the client's gradient at its start is in its update."""
    return (1 - (1 - learning_rate) ** num_steps) / learning_rate


class QuadraticProbe:
    """Answers what samplers ask before they draw."""

    def __init__(self, weights: torch.Tensor, targets: torch.Tensor, num_steps: np.ndarray, learning_rate: float):
        self.weights, self.targets = weights, targets
        self.steps, self.learning_rate = num_steps, learning_rate
        self.num_steps = 0

    def losses(self, clients: np.ndarray) -> np.ndarray:
        return (0.5 * (self.gradients(clients) ** 2).sum(dim=1)).numpy()

    def gradients(self, clients: np.ndarray) -> torch.Tensor:
        return self.weights - self.targets[torch.from_numpy(clients)]

    def updates(self, clients: np.ndarray) -> Updates:
        factors = torch.from_numpy(gain(self.steps[clients], self.learning_rate))
        return _updates(clients, factors[:, None] * self.gradients(clients), self.steps)


def _updates(clients: np.ndarray, deltas: torch.Tensor, num_steps: np.ndarray) -> Updates:
    return Updates(clients, deltas, deltas.new_empty((len(clients), 0)), num_steps[clients], np.zeros(len(clients)))


def _gradients(
    aggregator: Aggregator, clients: np.ndarray, weights: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return x0 - e_m + s of each client that trains; asks for start and shift only where they are not the default."""
    kind = type(aggregator)
    gradients = weights - targets[torch.from_numpy(clients)]
    if kind.start is not Aggregator.start:
        for row, client in enumerate(clients.tolist()):
            gradients[row] += aggregator.start(client, weights) - weights
    if kind.gradient_shift is not Aggregator.gradient_shift:
        for row, client in enumerate(clients.tolist()):
            shift = aggregator.gradient_shift(client)
            if shift is not None:
                gradients[row] += shift
    return gradients


def measured_weights(
    system: System, sampler: Sampler, aggregator: Aggregator, num_rounds: int, copies: int = 1, seed: int = 0
) -> np.ndarray:
    """Return the time average of the model over the last three quarters of the rounds, (kinds,)."""
    steps, rates = system.conditions(num_rounds, copies, seed)
    weights = np.tile(system.weights / copies, copies)
    targets = torch.eye(system.num_kinds, dtype=torch.float64).repeat(copies, 1)
    gains = torch.from_numpy(gain(steps, system.learning_rate))
    selection, channel = SamplerSelection(sampler, system.num_draws * copies), ChannelFailures()
    selection.start(lambda: _forecast(system, weights, copies, seed))
    model = torch.full((system.num_kinds,), 1 / system.num_kinds, dtype=torch.float64)
    aggregator.setup(len(weights), model)
    total, burn_in = torch.zeros_like(model), num_rounds // 4
    for index in range(num_rounds):
        profiles = Profiles(weights, steps[index], rates[index], steps[index].astype(np.float64))
        probe = QuadraticProbe(model, targets, steps[index], system.learning_rate)
        cohort = selection.configure_cohort(index + 1, profiles, probe, seed)
        coefficients = aggregator.coefficients(profiles, cohort)
        plan = RoundPlan(index + 1, profiles, cohort, coefficients, system.learning_rate)
        delivered = channel.configure_delivery(plan, seed)
        clients = aggregator.trains(plan, delivered)
        gradients = _gradients(aggregator, clients, model, targets)
        updates = _updates(clients, gains[index][torch.from_numpy(clients)][:, None] * gradients, steps[index])
        model = aggregator(model, updates, delivered, plan)
        sampler.observe(RoundResult(plan, delivered, updates, {}, 0.0))
        if index >= burn_in:
            total += model
    return (total / (num_rounds - burn_in)).numpy()


def reported_weights(
    system: System, sampler: Sampler, aggregator: Aggregator, num_rounds: int = 400, copies: int = 1, seed: int = 0
) -> np.ndarray:
    """Return Omega as sampler and aggregator report it before any draw, over all rounds, (kinds,)."""
    sampler.start(lambda: _forecast(system, np.tile(system.weights / copies, copies), copies, seed))
    selection = SamplerSelection(sampler, system.num_draws * copies)
    total = np.zeros(system.num_kinds * copies)
    for profiles in _forecast(system, np.tile(system.weights / copies, copies), copies, seed, num_rounds):
        cohort = selection.expected_cohort(profiles)
        plan = RoundPlan(1, profiles, cohort, aggregator.coefficients(profiles, cohort), system.learning_rate)
        total += plan.contribution
    kinds = total.reshape(copies, -1).sum(axis=0)
    return kinds / kinds.sum()


def predicted_weights(
    system: System, formula: Callable[..., np.ndarray], infinitesimal: bool, num_rounds: int = 20_000, seed: int = 0
) -> np.ndarray:
    """Return the mean of a formula (w, q, T, A) over the conditions, normalised; A is B / eta or, infinitesimal, T."""
    steps, rates = system.conditions(num_rounds, 1, seed)
    work = steps if infinitesimal else gain(steps, system.learning_rate)
    amounts = np.broadcast_to(formula(system.weights, rates, steps, work), steps.shape).mean(axis=0)
    return amounts / amounts.sum()


def _forecast(system: System, weights: np.ndarray, copies: int, seed: int, num_rounds: int = 256) -> Iterator[Profiles]:
    for steps, rates in zip(*system.conditions(num_rounds, copies, seed + 1000), strict=True):
        conditions = Conditions(steps, rates)
        yield Profiles(weights, conditions.num_steps, conditions.failure_rates, steps.astype(np.float64))
