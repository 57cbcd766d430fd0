"""Your own Fabric loop with our planner and channel: local training and aggregation are all yours."""

import copy

import numpy as np
import torch
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import Digits, OneClassPerClient
from fl_lightning.planning import Planner
from fl_lightning.samplers import HeterogeneityAware
from lightning.fabric import Fabric
from torch import nn


def main(rounds=100, lr=0.1, seed=0):
    fabric = Fabric(accelerator="cpu", devices=1)
    federation = Digits(OneClassPerClient(num_clients=20)).load(seed)
    channel = ChannelFailures()
    slow, fast = Group(0.5, (1, 10), (0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))
    planner = Planner(
        algorithm=Algorithm(sampling=SamplerSelection(HeterogeneityAware(), clients_per_round=6)),
        system=System(schedule=HeterogeneitySchedule(groups=[slow, fast])),
        weights=federation.sizes / federation.sizes.sum(),
        learning_rate=lr,
        steps_per_epoch=np.ones(20, dtype=int),
        seed=seed,
    )
    planner.start()
    torch.manual_seed(seed)
    model = fabric.to_device(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))

    for index in range(1, rounds + 1):
        plan = planner.plan(index)
        delivered = channel.configure_delivery(plan, seed)

        start = copy.deepcopy(model.state_dict())
        change = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in np.flatnonzero(delivered):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
            for _ in range(plan.profiles.num_steps[client]):
                inputs, labels = federation.batch(client, np.arange(federation.sizes[client]))
                optimizer.zero_grad()
                fabric.backward(nn.functional.cross_entropy(model(inputs), labels))
                optimizer.step()
            for name, value in model.state_dict().items():
                change[name] += delivered[client] / plan.cohort.num_draws * (value - start[name])
        model.load_state_dict({name: start[name] + change[name] for name in start})

    inputs, labels = federation.test
    return float((model(inputs).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    print(f"test accuracy {main():.3f}")
