"""Why FedAvg optimises the wrong objective when clients differ, and FedACS the right one. Cells as in a notebook."""

# %% A federation: ten slow clients on bad links (digits 0 to 4), ten fast ones on good links (digits 5 to 9)
from pathlib import Path

import numpy as np
import torch
from fl_lightning import Algorithm, FederatedLoop, FederatedModule, System, theory
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import Digits, OneClassPerClient
from fl_lightning.networks import DigitsNet
from fl_lightning.samplers import HeterogeneityAware, Importance

GROUPS = [Group(0.5, num_steps=(1, 10), failure_rates=(0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))]
SAMPLERS = {"FedAvg": Importance(), "FedACS": HeterogeneityAware()}


# %% Before anybody trains, the plan of a round says which objective it descends
def effective_weights(results):
    return np.mean([result.plan.effective_weights for result in results], axis=0)


# %% Training: what does the model forget?
def train(sampler, rounds):
    torch.manual_seed(0)
    results = []
    loop = FederatedLoop(
        Algorithm(sampling=SamplerSelection(sampler, 6)),
        System(schedule=HeterogeneitySchedule(groups=GROUPS), channel=ChannelFailures(), weights="uniform"),
        rounds=rounds,
        lr=0.02,
        batch_size=32,
    )
    loop.callbacks.append(type("Watch", (), {"on_round_end": lambda self, loop, result: results.append(result)})())
    loop.run(FederatedModule(DigitsNet()), Digits(OneClassPerClient(20)).load(0))
    accuracy = [result.metrics["test_accuracy"] for result in results]
    per_class = np.mean([result.class_accuracy for result in results[-rounds // 4 :]], axis=0)
    return accuracy, per_class, effective_weights(results)


# %% Pictures
def main(rounds=300, folder="runs/walk"):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    forgotten = {}
    for number, (name, sampler) in enumerate(SAMPLERS.items()):
        accuracy, per_class, omega = train(sampler, rounds)
        chi_square = theory.chi_square(np.full(20, 0.05), omega)
        forgotten[name] = (float(omega[:10].sum()), float(per_class[:5].mean()))
        left.plot(omega, "o-", label=f"{name} (chi² {chi_square:.2f})")
        middle.plot(np.convolve(accuracy, np.ones(10) / 10, "valid"), label=name)
        right.bar(np.arange(10) + 0.4 * number, per_class, 0.4, label=name)
    left.axhline(0.05, color="grey", lw=1, ls="--")
    left.set(title="the objective: weight of each client", xlabel="client", ylim=(0, None))
    middle.set(title="test accuracy (mean of 10 rounds)", xlabel="round")
    right.set(title="accuracy of each class", xlabel="digit", xticks=range(10))
    for axes in (left, middle, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "from_bias_to_fedacs.png", dpi=150)
    return forgotten


if __name__ == "__main__":
    for name, (weight, accuracy) in main().items():
        print(f"{name}: the slow half has {weight:.0%} of the objective (50% wanted); its classes reach {accuracy:.0%}")
