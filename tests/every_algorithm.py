"""All algorithms through the command line, one after another; ``test_processes.py`` starts it in 1 and 2 processes."""

import sys

from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs

ARGUMENTS = [
    *("--logger", "none", "--loop.rounds", "4", "--loop.engine.threads", "1", "--loop.batch_size", "16"),
    *("--data.partition.num_clients", "12", "--resume", "never"),
]


FIXED_NOISE = {"dpfedacs": ["--loop.uploads.key", "0"]}


def run_all(out: str, algorithms: list[str], extra: list[str]) -> int:
    codes = [main(["train", *_options(name, f"{out}/{name}"), *extra]) for name in algorithms]
    return max(codes)


def _options(name: str, folder: str) -> list[str]:
    return ["--config", f"digits_{name}.yaml", "--run_dir", folder, *ARGUMENTS, *FIXED_NOISE.get(name, [])]


if __name__ == "__main__":
    folder, names, *options = sys.argv[1:]
    sys.exit(run_all(folder, configs.names("algorithms") if names == "all" else names.split(","), options))
