"""How near the steps of W1 and W2 come to what the processor can multiply: ``python -m benchmarks.limits``."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.workloads import W1, W2, Workload
from fl_lightning.engine.machine import channels_last, keep_freed_memory, pool_before_relu


def fastest(action, repeats: int = 10) -> float:
    """Return the least seconds of a few calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def show(workload: Workload, threads: int) -> None:
    """Print operations, the speed of a matrix product, and where the time of a local step goes."""
    torch.set_num_threads(threads)
    network = workload.network()
    inputs = channels_last(torch.randn(workload.batch_size, *workload.shape))
    targets = torch.randint(0, 10, (workload.batch_size,))

    def step() -> None:
        loss = functional.cross_entropy(network(inputs), targets)
        torch.autograd.grad(loss, list(network.parameters()))

    with FlopCounterMode(display=False) as counter:
        step()
    operations = counter.get_total_flops()
    square = torch.randn(2048, 2048)
    speed = 2 * 2048**3 / fastest(lambda: square @ square)
    with pool_before_relu(network):
        seconds = fastest(step, 20)
        with torch.profiler.profile() as profile:
            for _ in range(10):
                step()
    reached, steps = operations / seconds, workload.clients_per_round * workload.num_steps
    print(f"{workload.name} on {threads} thread(s): a local step of {operations / 1e9:.3f} GFLOP")
    print(f"  takes {1e3 * seconds:.1f} ms = {reached / 1e9:.0f} GFLOP/s; a matrix product: {speed / 1e9:.0f} GFLOP/s")
    print(
        f"  {steps} steps at the speed of the product: {steps * operations / speed:.1f} s; as they are: ",
        end="",
    )
    print(f"{steps * seconds:.1f} s")
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=10, max_name_column_width=40))


def bare_step(workload: Workload, side_by_side: int, steps: int = 200) -> float:
    """Return the seconds of a local step where some threads make nothing but such steps, each on a model of its own.

    No federation, no clients, no evaluation: what is faster than this must make the operators faster.
    """
    examples = torch.randn(64, workload.batch_size, *workload.shape)
    targets = torch.randint(0, 10, (workload.batch_size,))

    def train(_: int) -> float:
        torch.set_num_threads(1)
        network = workload.network()
        parameters = list(network.parameters())
        with pool_before_relu(network):
            for index in range(-20, steps):
                if index == 0:
                    began = time.perf_counter()
                loss = functional.cross_entropy(network(channels_last(examples[index % 64])), targets)
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-1e-4)
        return (time.perf_counter() - began) / steps

    with ThreadPoolExecutor(side_by_side) as pool:
        return max(pool.map(train, range(side_by_side)))


def main() -> None:
    """Measure a step of W1 on all threads and one of W2 on one thread, as they are trained."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of a step of W1")
    threads = parser.parse_args().threads
    keep_freed_memory()
    show(W1, threads)
    show(W2, 1)
    for number in sorted({1, threads}):
        print(f"W2, nothing but local steps, {number} side by side: {1e3 * bare_step(W2, number):.2f} ms per step")


if __name__ == "__main__":
    main()
