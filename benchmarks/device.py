"""``python -m benchmarks device``: W1, W2 and W3 on the device at hand, for each mode and block size.

Prints a table and writes a JSON that can be attached to an issue; from the times it proposes from how many clients on
stacking pays.
"""

import json
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.console import Console
from rich.table import Table

from benchmarks.ours import federation_of, loop_of, module_of
from benchmarks.workloads import WORKLOADS, Workload, quick
from fl_lightning.engine import Engine
from fl_lightning.engine.memory import free_memory
from fl_lightning.engine.stacked import Stacked

CASES = ("W1", "W2", "W3")
BLOCKS = (4, 16, 64, 256, 1024)


class _Blocks(Engine):
    """Stacks as many clients as told."""

    def __init__(self, mode: Any, block: int) -> None:
        super().__init__(mode)
        self._block = block

    def _way(self) -> Any:
        way = super()._way()
        if isinstance(way, Stacked) and self._block:
            way.block = self._block
        return way


def variants(workload: Workload, device: torch.device) -> list[tuple[str, int]]:
    """Return modes and block sizes to try; 0 is the size that the engine takes by itself."""
    blocks = [block for block in BLOCKS if block < workload.clients_per_round]
    ways = [("sequential", 0), ("stacked", 0), *(("stacked", block) for block in blocks)]
    return [*ways, ("threads", 0)] if device.type == "cpu" else ways


def measure(workload: Workload, mode: str, block: int, fabric: Fabric, repeats: int) -> dict[str, Any]:
    """Return the seconds of the fastest of some rounds, after one that is not counted; or why there are none."""
    engine = _Blocks(mode, block)
    loop = loop_of(workload, engine, fabric, rounds=repeats + 1)
    times: list[float] = []
    try:
        began = time.perf_counter()
        for _ in loop.iterate(module_of(workload), federation_of(workload)):
            if fabric.device.type != "cpu":
                torch.get_device_module(fabric.device).synchronize()
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
    except (ValueError, RuntimeError) as error:
        return {"mode": mode, "block": block, "failed": str(error)[:200]}
    way = engine._way_of_training
    used = way.block if isinstance(way, Stacked) else 0
    return {"mode": mode, "block": used, "seconds": min(times[1:]), "rounds": times, "choice": engine.choice.reason}


def proposed(found: list[dict[str, Any]]) -> str:
    """Return which way was fastest, and by how much."""
    done = sorted((each for each in found if "seconds" in each), key=lambda each: each["seconds"])
    if len(done) < 2:
        return "nothing to compare"
    best = done[0]
    name = f"{best['mode']} in blocks of {best['block']}" if best["block"] else best["mode"]
    return f"{name}: {done[-1]['seconds'] / best['seconds']:.1f} times as fast as {done[-1]['mode']}"


def run(console: Console, folder: Path, repeats: int, small: bool, cases: tuple[str, ...] = CASES) -> Path:
    """Measure, print a table for each workload, and return the JSON that was written."""
    fabric = Fabric(accelerator="auto", devices=1)
    device = fabric.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    machine = {"device": str(device), "name": name, "free_bytes": free_memory(device) if device.type != "cpu" else None}
    versions = {"torch": torch.__version__, "python": platform.python_version(), "system": platform.platform()}
    content: dict[str, Any] = {"machine": machine, "versions": versions, "quick": small, "workloads": {}}
    for case in cases:
        workload = replace(quick(WORKLOADS[case]) if small else WORKLOADS[case], lossy_half=False)
        found = [measure(workload, *way, fabric, repeats) for way in variants(workload, device)]
        content["workloads"][case] = {"measured": found, "proposed": proposed(found)}
        table = Table(title=f"{case} on {device} ({name}); {proposed(found)}")
        for column in ("mode", "clients in a block", "seconds per round"):
            table.add_column(column, justify="left" if column == "mode" else "right")
        for each in found:
            seconds = f"{each['seconds']:.4f}" if "seconds" in each else each["failed"]
            table.add_row(each["mode"], str(each["block"] or ""), seconds)
        console.print(table)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "device.json"
    path.write_text(json.dumps(content, indent=1))
    console.print(f"written to {path}; attach it to an issue of the kind 'Times on a device'")
    return path
