"""``fl-lightning train``: from a configuration to a finished run."""

import sys
from typing import Any

from fl_lightning.cli import configs


def _help() -> str:
    from fl_lightning.cli import keys

    return f"""usage: train.py [--config FILE ...] [--KEY VALUE ...] [--resume HOW] [--trust PACKAGE] [--print_config]

Train a federation. Without a config, the digits demo ({configs.DEMO}) runs.

  --config FILE     a file, or a shipped one by name: <data>_<algorithm>.yaml; several are merged in order
                      data:       {", ".join(configs.names("data"))}
                      algorithms: {_wrapped(configs.names("algorithms"))}
  --KEY VALUE       any key of the config by its dotted path: --seed 1 --loop.rounds 50 --loop.lr 0.1
                      --loop.sampling.sampler fl_lightning.samplers.Importance --loop.calibration.apply server
  --KEY.help CLASS  show the arguments of a class that can stand there: --loop.sampling.sampler.help Importance
  --resume HOW      auto (default): resume an interrupted run of the same config in its folder, keep a finished one
                    never: start anew and replace what is there; PATH: resume from a checkpoint or a run's folder
  --trust PACKAGE   let configs name classes of this package too, besides fl_lightning, torch, lightning, torchmetrics
                    and torchvision; importing a package runs its code, so name only what you would run yourself
  --print_config    show the complete config and stop
  --help            show this

{keys.stored()}
Ctrl-C and SIGTERM finish the round and save; the same command then resumes. Exit codes: 0 finished, 2 an error that you
can fix (one line says which), 130 and 143 paused by Ctrl-C and SIGTERM.
"""


def _wrapped(words: list[str], width: int = 90) -> str:
    import textwrap

    return ("\n" + " " * 34).join(textwrap.wrap(", ".join(words), width))


def split_arguments(arguments: list[str], option: str) -> tuple[list[str], list[str]]:
    """Separate the values of an option that may come several times from everything else.

    >>> split_arguments(["--config", "a.yaml", "--seed", "1", "--config=b.yaml"], "--config")
    (['a.yaml', 'b.yaml'], ['--seed', '1'])
    """
    values: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == option:
            value = next(remaining, None)
            if value is None:
                raise configs.ConfigError(f"{option} needs a value")
            values.append(value)
        elif argument.startswith(f"{option}="):
            values.append(argument.removeprefix(f"{option}="))
        else:
            rest.append(argument)
    return values, rest


def main(arguments: list[str]) -> int:
    """Parse, build and run."""
    if "-h" in arguments or "--help" in arguments:
        print(_help())
        return 0
    names, rest = split_arguments(arguments, "--config")
    trusted, rest = split_arguments(rest, "--trust")
    resumes, rest = split_arguments(rest, "--resume")
    names = names or [configs.DEMO]
    merged = configs.compose(names)
    from fl_lightning.cli import building  # heavy: torch, lightning

    if "--print_config" in rest:
        rest.remove("--print_config")
        print(building.dump(building.parse(merged, rest, trusted)), end="")
        return 0
    settings = building.parse(merged, rest, trusted)
    return _run(building, settings, configs.run_name(names), resumes[-1] if resumes else "auto")


def _run(building: Any, settings: Any, name: str, resume: str) -> int:
    from fl_lightning.cli.interruption import interruptible
    from fl_lightning.cli.resuming import folder_of

    folder = folder_of(resume, settings.run_dir)
    if folder is not None:
        settings.run_dir = str(folder)
    run = building.build(settings, name)
    with interruptible(run) as interruption:
        outcome = run.execute(resume)
    if outcome is building.Outcome.PAUSED:
        same = "the same command" if resume != "never" else "the same command with --resume auto"
        text = f"paused after round {run.loop.round_index} of {run.loop.rounds}: {same} goes on from there"
        if run.loop.fabric.global_rank == 0:
            print(text, file=sys.stderr)
        return interruption.exit_code or 143  # another process was told to stop
    if outcome is building.Outcome.KEPT:
        print(f"{run.run_dir}: finished already; --resume never runs it again", file=sys.stderr)
    if run.loop.fabric.global_rank == 0:
        _report(run.run_dir)
    return 0


def _report(run_dir: Any) -> None:
    import json

    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        metric = str(summary.get("monitor", "test_accuracy")).removeprefix("test_")
        shown = {
            name: summary[name]
            for name in (f"final_{metric}", f"best_{metric}", "rounds_to_target")
            if isinstance(summary.get(name), int | float)
        }
    except (OSError, ValueError, AttributeError, RecursionError):
        return  # the results are complete, only their summary is not; that was said before
    text = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown.items())
    print(f"{run_dir}: {text}", file=sys.stdout)
