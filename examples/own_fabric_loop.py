"""Your own Fabric loop with our planner, channel, time, W&B and target: training and aggregation are all yours."""

import copy

import numpy as np
import torch
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import (
    ChannelFailures,
    ComputationTime,
    Group,
    HeterogeneitySchedule,
    SamplerSelection,
    StopAtTarget,
    WandbMetrics,
)
from fl_lightning.data import Digits, OneClassPerClient
from fl_lightning.planning import Planner
from fl_lightning.samplers import HeterogeneityAware
from lightning.fabric import Fabric
from torch import nn


def main(rounds=100, lr=0.1, seed=0, folder="runs/own_fabric_loop", target=0.75):
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
    times, stop = ComputationTime(seconds_per_step=0.01), StopAtTarget(target)
    metrics = WandbMetrics(save_dir=folder, mode="offline", target_accuracy=target)
    metrics.start()

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
        accuracy = float((model(inputs).argmax(1) == labels).float().mean())
        drawn = plan.cohort.counts > 0
        columns = times.add_round(np.where(drawn, plan.profiles.num_steps, 0))
        metrics.log_round(index, {"test_accuracy": accuracy, "chi2": plan.chi_square, **columns})
        if stop.reached(accuracy):
            break
    metrics.finish()
    return accuracy, index, times.local_steps


if __name__ == "__main__":
    accuracy, rounds, steps = main()
    print(f"test accuracy {accuracy:.3f} after {rounds} rounds and {steps} local steps")
