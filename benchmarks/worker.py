"""One process that plays rounds of a workload when told to, and says how long each took.

``python -m benchmarks.worker SIDE WORKLOAD THREADS [--quick]``; each line on standard input asks for a round, a line of
JSON on standard output answers. A process for each side keeps allocator and thread settings apart.
"""

import argparse
import importlib
import json
import os
import sys
import time


def main() -> None:
    """Read the arguments and play."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "side", help="by_hand, peers:NAME, or ours with the engine's mode and number of processes: ours:auto:1"
    )
    parser.add_argument("workload")
    parser.add_argument("threads", type=int)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print must not be taken for an answer

    import torch

    from benchmarks.workloads import WORKLOADS, quick

    torch.set_num_threads(arguments.threads)
    workload = WORKLOADS[arguments.workload]
    workload = quick(workload) if arguments.quick else workload
    clock = [time.perf_counter(), time.process_time()]

    def pause(parts: dict[str, float]) -> bool:
        wall, cpu = time.perf_counter() - clock[0], time.process_time() - clock[1]
        print(json.dumps({"wall": wall, "cpu": cpu, **parts}), file=answers)
        go_on = bool(sys.stdin.readline().strip())
        clock[:] = [time.perf_counter(), time.process_time()]
        return go_on

    if arguments.side == "by_hand":
        from benchmarks import by_hand

        by_hand.run(workload, pause)
    elif arguments.side.startswith("peers:"):
        peer = importlib.import_module(f"benchmarks.peers.{arguments.side.partition(':')[2]}_peer")
        peer.run(workload, pause)
    else:
        from benchmarks import ours

        _, mode, devices = arguments.side.split(":")
        ours.run(workload, pause, mode, int(devices))


if __name__ == "__main__":
    main()
