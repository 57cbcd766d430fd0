"""Your own Fabric loop with our schedule, sampling and channel: call the ``configure_*`` hooks, use what they give."""

import copy

import numpy as np
import torch
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import Digits, OneClassPerClient
from fl_lightning.samplers import HeterogeneityAware
from fl_lightning.types import Profiles, RoundPlan
from lightning.fabric import Fabric
from torch import nn


def main(rounds=100, lr=0.1, seed=0):
    fabric = Fabric(accelerator="cpu", devices=1)
    schedule = HeterogeneitySchedule(groups=[Group(0.5, (1, 10), (0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))])
    sampling, channel = SamplerSelection(HeterogeneityAware(), clients_per_round=6), ChannelFailures()
    federation = Digits(OneClassPerClient(num_clients=20)).load(seed)
    weights = federation.sizes / federation.sizes.sum()
    torch.manual_seed(seed)
    model = fabric.to_device(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))

    for index in range(1, rounds + 1):
        conditions = schedule.configure_conditions(index, np.ones(20, dtype=int), seed)
        profiles = Profiles(weights, conditions.num_steps, conditions.failure_rates, conditions.num_steps.astype(float))
        cohort = sampling.configure_cohort(index, profiles, None, seed)
        plan = RoundPlan(index, profiles, cohort, cohort.coefficients, lr)
        delivered = channel.configure_delivery(plan, seed)

        start = copy.deepcopy(model.state_dict())  # local training and aggregation are all yours
        change = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in np.flatnonzero(delivered):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for _ in range(profiles.num_steps[client]):
                inputs, labels = federation.batch(client, np.arange(federation.sizes[client]))
                optimizer.zero_grad()
                fabric.backward(nn.functional.cross_entropy(model(inputs), labels))
                optimizer.step()
            for name, value in model.state_dict().items():
                change[name] += delivered[client] / cohort.num_draws * (value - start[name])
        model.load_state_dict({name: start[name] + change[name] for name in start})

    inputs, labels = federation.test
    return float((model(inputs).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    print(f"test accuracy {main():.3f}")
