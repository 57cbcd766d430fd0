"""``fl-lightning train``: from a configuration to a finished run."""

import sys
from typing import Any

from fl_lightning.cli.layout import listed, width, wrapped
from fl_lightning.cli.waiting import loading
from fl_lightning.config import catalogue, early
from fl_lightning.config import compose as configs
from fl_lightning.runs import identity


def _help() -> str:
    wide = width()
    keys = [key for key in catalogue.stored().keys if not key.name.startswith("fabric.")]
    fabric = [key.name.removeprefix("fabric.") for key in catalogue.stored().keys if key.name.startswith("fabric.")]
    pairs = [*((key.name, key.help) for key in keys), ("fabric.KEY", f"{', '.join(fabric)}: as in Lightning's Fabric.")]
    options = listed(
        [
            ("--config FILE", "a file, or a shipped one by name: <data>_<algorithm>.yaml; several are merged in order"),
            ("--KEY VALUE", "any key of the config by its dotted path: --seed 1 --loop.rounds 50 --loop.lr 0.1"),
            ("--KEY.help CLASS", "show the arguments of a class: --loop.sampling.sampler.help Importance; "
                "`fl-lightning show sampler` lists the classes"),
            ("--resume HOW", "auto (default): resume an interrupted run of the same config in its folder, keep a "
                "finished one; never: start over and replace what is there; PATH: resume from a checkpoint"),
            ("--trust PACKAGE", "let configs name classes of this package too, besides fl_lightning, torch, lightning, "
                "torchmetrics and torchvision; importing a package runs its code, so name only what you would run "
                "yourself"),
            ("--print_config", "show the complete config and stop"),
            ("--help", "show this"),
        ],
        wide,
        16,
    )  # fmt: skip
    names = [("data", configs.names("data")), ("algorithms", configs.names("algorithms"))]
    shipped = [f"  {kind + ':':<12}{wrapped(found, wide, 14)}" for kind, found in names]
    return "\n".join(
        [
            "usage: train.py [--config FILE ...] [--KEY VALUE ...] [--resume HOW]",
            "",
            f"Train a federation. Without a config, the digits demo ({configs.DEMO}) runs.",
            "",
            *options,
            "",
            "shipped configs:",
            *shipped,
            "",
            "keys (--print_config shows the values of all):",
            *listed(pairs, wide, 25),
            "",
            "Ctrl-C and SIGTERM finish the round and save; the same command then resumes.",
            "Exit codes: 0 finished, 2 an error that you can fix (one line says which),",
            "130 and 143 paused by Ctrl-C and SIGTERM.",
        ]
    )


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
    printing = "--print_config" in rest
    rest = [word for word in rest if word != "--print_config"]
    merged = configs.compose(names)
    early.check(merged, rest, trusted, ("config", "trust", "resume", "print_config", "help"))
    with loading():
        from fl_lightning.config import building

    settings = building.parse(merged, rest, trusted)
    if printing:
        print(building.dump(settings), end="")
        return 0
    resume = resumes[-1] if resumes else "auto"
    _choose_folder(building, settings, merged, rest, names, resume)
    return _run(building, settings, names, resume)


def _choose_folder(
    building: Any, settings: Any, merged: dict[str, Any], overrides: list[str], names: list[str], resume: str
) -> None:
    """Give a run without ``--run_dir`` a folder of its own."""
    from fl_lightning.runs.records import stored_config
    from fl_lightning.runs.resuming import folder_of

    given = folder_of(resume, settings.run_dir)
    if given is not None:
        settings.run_dir = str(given)
    if settings.run_dir is not None:
        return
    changed = identity.changed_settings(merged, settings.as_dict(), list(early.settings(overrides)))
    folder = identity.run_folder(configs.run_name(names), changed, settings.seed)
    settings.run_dir = str(
        folder if resume != "auto" else identity.apart(folder, stored_config(folder), building.dump(settings))
    )


def _run(building: Any, settings: Any, names: list[str], resume: str) -> int:
    from fl_lightning.cli.closing import closing_lines
    from fl_lightning.runs.interruption import interruptible

    run = building.build(settings, configs.run_name(names))
    with interruptible(run.pause) as interruption:
        outcome = run.execute(resume)
    is_first = run.loop.fabric.global_rank == 0
    if outcome is building.Outcome.PAUSED:
        same = "the same command" if resume != "never" else "the same command with --resume auto"
        text = f"paused after round {run.loop.round_index} of {run.loop.rounds}: {same} resumes from there"
        if is_first:
            print(text, file=sys.stderr)
        return interruption.exit_code or 143  # another process was told to stop
    if outcome is building.Outcome.KEPT and is_first:
        print(f"{run.run_dir} is already finished: use --resume never to start over", file=sys.stderr)
    if is_first:
        print("\n".join(closing_lines(run.loop, run.run_dir, names)))
    return 0
