"""``fl-lightning train``: from a configuration to a finished run."""

import sys
from typing import Any

from fl_lightning.cli import configs

_OPTIONS = ("--config", "--print_config", "--help", "-h")


def _help() -> str:
    return f"""usage: train.py [--config FILE ...] [--KEY VALUE ...] [--print_config]

Train a federation. Without a config, the digits demo ({configs.DEMO}) runs.

  --config FILE     a file, or a shipped one by name: <data>_<algorithm>.yaml; several are laid on each other in order
                      data:       {", ".join(configs.names("data"))}
                      algorithms: {_wrapped(configs.names("algorithms"))}
  --KEY VALUE       any key of the config by its dotted path: --seed 1 --loop.rounds 50 --loop.lr 0.1
                      --loop.sampling.sampler fl_lightning.samplers.Importance --loop.calibration.apply server
  --print_config    show the complete config and stop
  --help            show this

keys: seed, run_dir (default runs/<config>/seed_<seed>), target_accuracy, logger (wandb | none), model, data, fabric
      (accelerator, devices, precision, ...), loop (rounds, lr, batch_size, schedule, sampling, channel, solver,
      aggregator, calibration, engine, weights, evaluate_every, callbacks)
"""


def _wrapped(words: list[str], width: int = 90) -> str:
    import textwrap

    return ("\n" + " " * 34).join(textwrap.wrap(", ".join(words), width))


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Separate the names after ``--config`` from everything else.

    >>> split_arguments(["--config", "a.yaml", "--seed", "1", "--config=b.yaml"])
    (['a.yaml', 'b.yaml'], ['--seed', '1'])
    """
    names: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--config":
            name = next(remaining, None)
            if name is None:
                raise configs.ConfigError("--config needs the name of a file")
            names.append(name)
        elif argument.startswith("--config="):
            names.append(argument.removeprefix("--config="))
        else:
            rest.append(argument)
    return names, rest


def main(arguments: list[str]) -> int:
    """Parse, build and run."""
    if "-h" in arguments or "--help" in arguments:
        print(_help())
        return 0
    names, rest = split_arguments(arguments)
    names = names or [configs.DEMO]
    merged = configs.compose(names)
    from fl_lightning.cli import building  # heavy: torch, lightning

    if "--print_config" in rest:
        rest.remove("--print_config")
        print(building.dump(building.parse(merged, rest)), end="")
        return 0
    settings = building.parse(merged, rest)
    run = building.build(settings, configs.run_name(names))
    run.execute()
    _report(run.run_dir)
    return 0


def _report(run_dir: Any) -> None:
    import json

    summary = json.loads((run_dir / "summary.json").read_text())
    shown = {
        name: summary[name]
        for name in ("final_accuracy", "best_accuracy", "rounds_to_target", "final_distance")
        if summary.get(name) is not None
    }
    text = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown.items())
    print(f"{run_dir}: {text}", file=sys.stdout)
