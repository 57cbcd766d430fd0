"""Made-up federations that several tests use."""

import numpy as np
import torch
from torch import nn

from fl_lightning.callbacks import ChannelFailures, ComputationTime, HeterogeneitySchedule, SamplerSelection
from fl_lightning.callbacks.schedule import Group
from fl_lightning.data import TensorFederation
from fl_lightning.loop import FederatedLoop
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import HeterogeneityAware, Sampler
from fl_lightning.types import Cohort, Expectation, Profiles, RoundPlan, Vector
from made import made_loop, made_profiles

PAPER_GROUPS = [Group(0.5, (1, 10), (0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))]


def random_profiles(rng: np.random.Generator, num_clients: int) -> Profiles:
    weights = rng.dirichlet(np.ones(num_clients))
    num_steps = rng.integers(1, 31, num_clients)
    return made_profiles(
        weights=weights,
        num_steps=num_steps,
        failure_rates=rng.uniform(0, 0.6, num_clients),
        accumulation=num_steps.astype(float),
    )


def made_plan(
    index: int,
    profiles: Profiles,
    cohort: Cohort,
    coefficients: Vector,
    learning_rate: float,
    server_scale: float = 1.0,
) -> RoundPlan:
    expected = Expectation(profiles, cohort.probabilities, coefficients)
    return RoundPlan(
        index=index, expected=expected, cohort=cohort, learning_rate=learning_rate, server_scale=server_scale
    )


def gaussian_federation(num_clients: int = 6, size: int = 12, num_classes: int = 3, seed: int = 0) -> TensorFederation:
    """Clients whose examples are noise around the mean of their class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_clients) % num_classes, size)
    means = rng.normal(size=(num_classes, 5)) * 2
    inputs = torch.from_numpy(means[labels] + rng.normal(size=(len(labels), 5))).float()
    clients = np.split(np.arange(len(labels)), num_clients)
    data = (inputs, torch.from_numpy(labels))
    return TensorFederation(data, data, clients)


def linear_module(num_classes: int = 3, seed: int = 0) -> FederatedModule:
    torch.manual_seed(seed)
    return FederatedModule(nn.Linear(5, num_classes), num_classes)


def small_loop(sampler: Sampler | None = None, **settings) -> FederatedLoop:
    defaults = {
        "rounds": 4,
        "lr": 0.05,
        "batch_size": 4,
        "schedule": HeterogeneitySchedule(groups=PAPER_GROUPS),
        "sampling": SamplerSelection(sampler or HeterogeneityAware(), 3),
        "channel": ChannelFailures(),
        "callbacks": [ComputationTime()],
    }
    return made_loop(**(defaults | settings))
