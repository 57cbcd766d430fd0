"""Other simulators on the same workloads; run ``python -m benchmarks.peers --help``."""
