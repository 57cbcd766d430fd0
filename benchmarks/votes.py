"""How far votes hold, with Adam at the clients: on a toy of known points, and on the clients of a config.

``python -m benchmarks.votes`` takes about a minute of one core for the toy; ``--config shakespeare.yaml`` measures on
those clients how long an update of T steps is, and which share of a step each client really has.
"""

import argparse
import copy
import sys
from collections.abc import Sequence

import numpy as np
import torch
from lightning.pytorch import LightningModule

from fl_lightning import Algorithm, FederatedLoop, System, TensorFederation, algorithm
from fl_lightning.callbacks import HeterogeneitySchedule
from fl_lightning.config import compose as configs
from fl_lightning.config.parsing import instantiate
from fl_lightning.module import QuadraticModule
from fl_lightning.parts.protocols import Federation
from fl_lightning.solvers import TorchOptimizer
from fl_lightning.types import Vector

_CLIENTS, _DIMENSION, _EXAMPLES = 11, 40, 64
_STEPS = np.linspace(1, 28, _CLIENTS).astype(int)
_WORK = (1, 2, 4, 8, 16, 32)
NOISES = {
    "none": np.zeros(_CLIENTS),
    "equal, 5": np.full(_CLIENTS, 5.0),
    "from 1 to 10, more where T is large": np.geomspace(1, 10, _CLIENTS),
}


def toy(noise: Vector, seed: int = 0) -> TensorFederation:
    """Return clients whose examples lie around points of their own, noise apart."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((_CLIENTS, _DIMENSION))
    spread = rng.standard_normal((_CLIENTS, _EXAMPLES, _DIMENSION))
    spread -= spread.mean(axis=1, keepdims=True)
    examples = torch.from_numpy(points[:, None] + noise[:, None, None] * spread).float()
    members = np.arange(_CLIENTS * _EXAMPLES).reshape(_CLIENTS, _EXAMPLES)
    return TensorFederation(examples.flatten(0, 1), examples.mean(1).mean(0, keepdim=True), list(members))


def weighted_median(points: Vector, weights: Vector) -> Vector:
    """Return where the weights of the points on either side are equal, in each coordinate.

    >>> weighted_median(np.array([[0.0], [1.0], [5.0]]), np.array([0.2, 0.2, 0.6])).tolist()
    [5.0]
    """
    order = np.argsort(points, axis=0)
    passed = np.cumsum(weights[order], axis=0) >= 0.5 * weights.sum()
    return np.take_along_axis(np.take_along_axis(points, order, 0), passed.argmax(0)[None], 0)[0]


def reached(name: str, federation: TensorFederation, rounds: int, lr: float) -> Vector:
    """Return the model of a run, averaged over its second half."""
    kept: list[Vector] = []

    class Keep:
        def on_round_end(self, loop: FederatedLoop, result: object) -> None:
            kept.append(loop.state.weights.double().numpy().copy())

    solver = TorchOptimizer(torch.optim.Adam, votes=True)
    chosen: Algorithm = algorithm(name, clients_per_round=_CLIENTS, solver=solver)
    schedule = HeterogeneitySchedule(groups=None, num_steps=_STEPS.tolist(), failure_rates=[0.0] * _CLIENTS)
    system = System(schedule=schedule, weights="uniform")
    loop = FederatedLoop(
        chosen,
        system,
        rounds=rounds,
        lr=lr,
        batch_size=1,
        callbacks=[Keep()],
        evaluate_every=rounds,
        monitor="test_loss",
    )
    loop.run(QuadraticModule(_DIMENSION), federation)
    return np.mean(kept[rounds // 2 :], axis=0)


def on_the_toy(rounds: int, lr: float) -> None:
    """Print how far the ends of runs are from the mean and the median of the clients' points, each coordinate."""
    shares = {"fedavg": _STEPS / _STEPS.sum(), "fedacs": np.full(_CLIENTS, 1 / _CLIENTS)}
    print("| noise | algorithm | mean by weights | mean by votes | mean by votes / noise | median by votes |")
    print("|---|---|---:|---:|---:|---:|")
    for label, noise in NOISES.items():
        federation = toy(noise)
        points = np.stack([federation.batch(m, np.arange(_EXAMPLES)).double().mean(0) for m in range(_CLIENTS)])
        for name, votes in shares.items():
            end = reached(name, federation, rounds, lr)
            clear = votes / np.where(noise > 0, noise, 1.0)
            ends = [points.mean(0), votes @ points, clear @ points / clear.sum(), weighted_median(points, votes)]
            cells = [f"{np.sqrt(np.mean((end - each) ** 2)):.3f}" for each in ends]
            print(f"| {label} | {name} | {' | '.join(cells)} |", flush=True)


def on_clients(config: str, num_clients: int, lr: float) -> None:
    """Print how long the updates of T steps are, and how much of that two orders of the batches agree on."""
    made = instantiate(configs.compose([config]), ("seed", "data", "model", "loop.batch_size"))
    federation = made.data.load(made.seed)
    chosen = np.linspace(0, federation.num_clients - 1, num_clients).astype(int)
    drawn = np.argsort(federation.sizes, kind="stable")[chosen]
    lengths, signals = np.empty((2, num_clients, len(_WORK)))
    for row, client in enumerate(drawn):
        size = int(federation.sizes[client])
        paths = [_path(made.model, federation, client, size, made.loop.batch_size, lr, order) for order in (0, 1)]
        for column, steps in enumerate(_WORK):
            first, second = (path[steps] for path in paths)
            lengths[row, column] = 0.5 * float(first.abs().mean() + second.abs().mean()) / lr
            signals[row, column] = max(0.0, float((first * second).mean())) ** 0.5 / lr
    sizes = federation.sizes[drawn]
    print(f"{config}: {num_clients} clients of {sizes.min()} to {sizes.max()} examples")
    print("| T = votes | moved, mean over coordinates | spread over clients | agreed by two orders | spread |")
    print("|---:|---:|---:|---:|---:|")
    for column, steps in enumerate(_WORK):
        values = [each[:, column] for each in (lengths, signals)]
        cells = [f"{each.mean():.2f} | {100 * each.std() / each.mean():.0f} %" for each in values]
        print(f"| {steps} | {' | '.join(cells)} |")
    rows, columns = np.arange(num_clients), np.arange(num_clients) % len(_WORK)
    work, weights = np.array(_WORK)[columns], np.full(num_clients, 1 / num_clients)
    for label, votes in (("fedavg", work / work.sum()), ("fedacs", weights)):
        found = votes / work * signals[rows, columns]
        apart = [np.abs(each - weights).sum() for each in (votes, found / found.sum())]
        print(f"{label}: L1 from the weights {apart[0]:.3f} by votes, {apart[1]:.3f} measured")


def _path(
    model: LightningModule, federation: Federation, client: int, size: int, batch_size: int, lr: float, order: int
) -> dict[int, torch.Tensor]:
    """Return by how much T steps of Adam move the trainable parameters, for each T that is looked at."""
    module, rng = copy.deepcopy(model).train(), np.random.default_rng([client, order])
    trained = [each for each in module.parameters() if each.requires_grad]
    start = torch.cat([each.detach().flatten() for each in trained])
    optimizer, moved = torch.optim.Adam(trained, lr=lr), {}
    for step in range(1, max(_WORK) + 1):
        batch = federation.batch(client, rng.choice(size, min(size, batch_size), replace=False))
        optimizer.zero_grad()
        module.training_step(batch, 0).backward()
        optimizer.step()
        if step in _WORK:
            moved[step] = torch.cat([each.detach().flatten() for each in trained]) - start
    return moved


def main(arguments: Sequence[str]) -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.votes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="of the toy")
    parser.add_argument("--lr", type=float, default=0.002, help="of Adam")
    parser.add_argument("--config", help="measure on the clients of this config instead: digits.yaml")
    parser.add_argument("--clients", type=int, default=24, help="of the config, from the smallest to the largest")
    options = parser.parse_args(arguments)
    if options.config is None:
        on_the_toy(options.rounds, options.lr)
    else:
        on_clients(options.config, options.clients, options.lr)


if __name__ == "__main__":
    main(sys.argv[1:])
