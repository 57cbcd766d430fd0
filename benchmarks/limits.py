"""How near a round of W1 comes to what the processor can multiply: ``python -m benchmarks.limits``."""

import argparse
import time

import fl_lightning.torchvision_guard  # noqa: F401  isort: skip
import torch
from torch.nn import functional

from benchmarks.workloads import W1
from fl_lightning.engine.allocator import keep_freed_memory
from fl_lightning.engine.layout import channels_last
from fl_lightning.engine.operations import CountOperations
from fl_lightning.engine.reorder import pool_before_relu


def fastest(action, repeats: int = 10) -> float:
    """Return the least seconds of a few calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Print operations, the speed of a matrix product, and where the time of a local step goes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    keep_freed_memory()
    network = W1.network()
    inputs = channels_last(torch.randn(W1.batch_size, *W1.shape))
    targets = torch.randint(0, 10, (W1.batch_size,))

    def step() -> None:
        loss = functional.cross_entropy(network(inputs), targets)
        torch.autograd.grad(loss, list(network.parameters()))

    with CountOperations() as counter:
        step()
    square = torch.randn(2048, 2048)
    speed = 2 * 2048**3 / fastest(lambda: square @ square)
    steps = W1.clients_per_round * W1.num_steps
    with pool_before_relu(network):
        seconds = fastest(step)
        with torch.profiler.profile() as profile:
            step()
    reached = counter.total / seconds
    print(f"a local step: {counter.total / 1e9:.2f} GFLOP in {seconds:.3f} s = {reached / 1e9:.0f} GFLOP/s")
    print(f"a matrix product of 2048: {speed / 1e9:.0f} GFLOP/s")
    print(f"a round of W1 at that speed: {steps * counter.total / speed:.1f} s; as measured: {steps * seconds:.1f} s")
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=10, max_name_column_width=40))


if __name__ == "__main__":
    main()
