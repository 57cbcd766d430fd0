"""How fast fl_lightning is beside a loop written by hand; run ``python -m benchmarks --help``."""
