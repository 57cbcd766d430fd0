"""Runs each case of the matrix on the CPU and on the pretend device, and prints how far they are apart as JSON.

In a process of its own: PyTorch counts devices when it first goes backward, so the device must be there before.
"""

import json
import sys
from io import BytesIO

import fl_lightning  # noqa: F401  first, so that torchvision loads

# isort: split
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision

from device import pretend
from device.matrix import Settings, cases, settings_of, shipped
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule
from fl_lightning.engine import Engine
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts.memory import decode, encode
from made import made_loop
from systems import PAPER_GROUPS

ROUNDS = 4


def loop_of(made: tuple[Algorithm, Settings], mode: str, where: Fabric) -> FederatedLoop:
    algorithm, settings = made
    rest = {key: value for key, value in settings.items() if key not in ("module", "data", "precision", "resumed_on")}
    defaults = {
        "rounds": ROUNDS,
        "lr": 0.05,
        "batch_size": 4,
        "schedule": HeterogeneitySchedule(groups=PAPER_GROUPS),
        "channel": ChannelFailures(),
        "engine": Engine(mode),
        "fabric": where,
    }
    return made_loop(algorithm, **(defaults | rest))


def fabric(device: str, precision: str) -> Fabric:
    if device == "cpu":
        return Fabric(accelerator="cpu", devices=1, precision=precision)
    return pretend.fabric([MixedPrecision(precision, device)] if precision.endswith("mixed") else [])


def played(mode: str, make, device: str) -> torch.Tensor:
    """Return the weights, buffers and metrics of all rounds, one after another."""
    torch.manual_seed(0)
    algorithm, given = make()
    settings = settings_of(given)
    loop = loop_of((algorithm, settings), mode, fabric(device, settings["precision"]))
    results, saved = [], None
    for result in loop.iterate(settings["module"], settings["data"]):
        results.append(result)
        if settings["resumed_on"] and result.plan.index == ROUNDS // 2:
            saved = decode(BytesIO(encode(loop.state_dict())))  # as in a file, where nothing is on a device
            break
    if saved is not None:
        torch.manual_seed(0)
        algorithm, given = make()
        settings = settings_of(given)
        where = device if settings["resumed_on"] == "same" else {"cpu": pretend.NAME, pretend.NAME: "cpu"}[device]
        loop = loop_of((algorithm, settings), mode, fabric(where, settings["precision"]))
        results += loop.iterate(settings["module"], settings["data"], saved)
    assert len(results) == ROUNDS
    names = [name for name in results[-1].metrics if name.startswith(("test", "train", "client"))]
    metrics = torch.tensor([float(result.metrics.get(name) or 0) for result in results for name in names])
    return torch.cat([loop.state.weights.cpu(), loop.state.buffers.cpu(), metrics])


def apart(mode: str, make) -> float | str:
    try:
        there, here = (played(mode, make, device) for device in (pretend.NAME, "cpu"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return float((here - there).norm() / here.norm())


def choices() -> dict[str, dict[str, object]]:
    """Return what the engine chooses on the device by itself, with and without a limit, and what it refuses."""
    found: dict[str, dict[str, object]] = {}
    for name, engine in {
        "auto": Engine(),
        "limited": Engine(memory="20kB"),
        "no room": Engine(memory="1kB"),
        "threads": Engine("threads"),
    }.items():
        settings = settings_of({"engine": engine})
        loop, before = loop_of((shipped("fedacs"), settings), "auto", pretend.fabric()), torch.pretend.num_pinned()
        try:
            loop.run(settings["module"], settings["data"])
        except ValueError as error:
            found[name] = {"refused": str(error)}
            continue
        choice, weights = engine.choice, loop.state.weights.cpu().tolist()
        kept = engine.batches._kept is not None
        found[name] = {"mode": choice.mode, "reason": choice.reason, "block": choice.block, "kept": kept}
        found[name] |= {"weights": weights, "test_size": engine._test_size}
        found[name]["pinned"] = torch.pretend.num_pinned() - before
    return found


if __name__ == "__main__":
    pretend.install()
    wanted = sys.argv[1:]
    chosen = {name: case for name, case in cases().items() if not wanted or any(word in name for word in wanted)}
    json.dump({name: apart(*case) for name, case in chosen.items()} | {"choices": choices()}, sys.stdout)
