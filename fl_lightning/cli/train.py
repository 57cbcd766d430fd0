"""``fl-lightning train``: from a configuration to a finished run."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.cli.main import SYSTEM, TRUST, OneLineParser, listed, width, wrapped
from fl_lightning.config import catalogue, early
from fl_lightning.config import compose as configs
from fl_lightning.config.processes import launched
from fl_lightning.output import loading
from fl_lightning.runs import identity

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from fl_lightning.loop import FederatedLoop


_HELP = """usage: train.py [--config FILE ...] [--KEY VALUE ...] [--resume HOW]

Train a federation. Without a config, the digits demo ({demo}) runs.

{options}

shipped configs:
{shipped}

keys (--print_config shows the values of all):
{keys}

Ctrl-C and SIGTERM finish the round and save; the same command then resumes.
Exit codes: 0 finished, 2 an error that you can fix (one line says which),
130 and 143 paused by Ctrl-C and SIGTERM."""


def _help() -> str:
    wide = width()
    known = catalogue.stored().keys
    keys = [key for key in known if not key.name.startswith("fabric.")]
    fabric = [key.name.removeprefix("fabric.") for key in known if key.name.startswith("fabric.")]
    pairs = [*((key.name, key.help) for key in keys), ("fabric.KEY", f"{', '.join(fabric)}: as in Lightning's Fabric.")]
    options = listed(
        [
            ("--config FILE", "a file, or a shipped one by name: <data>_<algorithm>.yaml; several are merged in order"),
            ("--system NAME", SYSTEM),
            ("--KEY VALUE", "any key of the config by its dotted path: --seed 1 --loop.rounds 50 --loop.lr 0.1"),
            ("--KEY.help CLASS", "show the arguments of a class: --loop.sampling.sampler.help Importance; "
                "`fl-lightning show sampler` lists the classes"),
            ("--resume HOW", "auto (default): resume an interrupted run of the same config in its folder, keep a "
                "finished one; never: start over and replace what is there; PATH: resume from a checkpoint"),
            ("--trust PACKAGE", TRUST),
            ("--print_config", "show the complete config and stop"),
            ("--help", "show this"),
        ],
        wide,
        16,
    )  # fmt: skip
    kinds = ("data", "algorithms", "systems")
    shipped = [f"  {kind + ':':<12}{wrapped(configs.names(kind), wide, 14)}" for kind in kinds]
    return _HELP.format(
        demo=configs.DEMO,
        options="\n".join(options),
        shipped="\n".join(shipped),
        keys="\n".join(listed(pairs, wide, 25)),
    )


def make_parser() -> OneLineParser:
    """Return the parser of the options that are train's own; all others are keys of a config."""
    parser = OneLineParser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    parser.add_system()
    parser.add_argument("--resume", default="auto")
    parser.add_trust()
    parser.add_argument("--print_config", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    return parser


def main(arguments: list[str]) -> int:
    """Parse, build and run."""
    options, overrides = make_parser().parse_known_args(arguments)
    if options.help:
        print(_help())
        return 0
    names = options.config or [configs.DEMO]
    merged = configs.compose(names, options.system)
    made = launched(dict(early.settings(overrides)))
    overrides += [f"--{key}={value}" for key, value in made.items()]
    early.check(merged, overrides, options.trust, tuple(vars(options)))
    with loading():
        from fl_lightning.config import building

    settings = building.parse(merged, overrides, options.trust)
    if options.print_config:
        print(building.dump(settings), end="")
        return 0
    other = configs.other_system(names, options.system)
    changed = identity.changed_settings(merged, settings.as_dict(), list(early.settings(overrides)))
    _choose_folder(settings, other | changed, names, options.resume)
    return _run(settings, names, options.resume, options.system)


def _choose_folder(settings: "Namespace", changed: dict[str, object], names: list[str], resume: str) -> None:
    """Give a run without ``--run_dir`` a folder of its own."""
    from fl_lightning.config.building import dump
    from fl_lightning.runs.records import stored_config
    from fl_lightning.runs.resuming import folder_of

    given = folder_of(resume, settings.run_dir)
    if given is not None:
        settings.run_dir = str(given)
    if settings.run_dir is not None:
        return
    folder = identity.run_folder(configs.run_name(names), changed, settings.seed)
    settings.run_dir = str(
        folder if resume != "auto" else identity.apart(folder, stored_config(folder), dump(settings))
    )


def _run(settings: "Namespace", names: list[str], resume: str, system: str | None) -> int:
    from fl_lightning.config.building import build
    from fl_lightning.config.processes import interruptible

    run = build(settings, configs.run_name(names))
    with interruptible(run.pause) as interruption:
        outcome = run.execute(resume)
    is_first = run.loop.fabric.global_rank == 0
    if outcome == "paused":
        same = "the same command" if resume != "never" else "the same command with --resume auto"
        if is_first:
            where = f"paused after round {run.loop.round_index} of {run.loop.rounds}"
            print(f"{where}: {same} resumes from there", file=sys.stderr)
        return interruption.exit_code or 143  # another process was stopped
    if is_first:
        if outcome == "kept":
            print(f"{run.run_dir} is already finished: use --resume never to start over", file=sys.stderr)
        print("\n".join(_closing_lines(run.loop, run.run_dir, names, system)))
    return 0


def _closing_lines(loop: "FederatedLoop", run_dir: Path, config_names: list[str], system: str | None) -> list[str]:
    """Return which objective a finished run optimised, what it reached and what to type next, as its files say."""
    from fl_lightning.diagnosis.dry_run import unknown_parts
    from fl_lightning.diagnosis.systems import fedavg_objective
    from fl_lightning.diagnosis.words import objective_line, unknown_line
    from fl_lightning.runs.records import read_clients, read_names

    lines = []
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # a damaged file, a solver of no known A
        solver, table = loop.algorithm.solver, read_clients(run_dir)
        unknown = [*unknown_parts(loop.algorithm), *([] if solver.clip is None else [type(solver).__name__])]
        if unknown:
            lines.append(unknown_line(unknown))
        else:
            columns = table["weight"], fedavg_objective(loop, table), table["effective_weight"]
            lines.append(objective_line(*columns, read_names(run_dir), votes=bool(solver.obstacle)))
    with suppress(OSError, ValueError, TypeError):  # that was said before
        lines.append(_reached(run_dir))
    return [*lines, f"next: {next_command(config_names, system)}"]


def _reached(run_dir: Path) -> str:
    from fl_lightning.runs.records import read_summary

    summary = read_summary(run_dir)
    number = sum(1 for index in range(1, summary.rounds + 1) if index > 0.8 * summary.rounds)
    last = f"mean of the last {number} rounds" if number > 1 else "last round"
    monitor = (summary.monitor or "test_accuracy").replace("_", " ")
    parts = [f"{monitor} {summary.last:.4g} ({last}), best {summary.best:.4g}"]
    if summary.averaged is not None:
        parts[0] += f", averaged model {summary.averaged:.4g}"
    if summary.target is not None:
        needed = summary.rounds_to_target
        parts.append(f"target {summary.target:g} {'not reached' if needed is None else f'after round {needed}'}")
    if summary.epsilon is not None:
        parts.append(f"epsilon {summary.epsilon:.4g} ({summary.epsilon_kind})")
    return f"reached: {'; '.join(parts)}; files in {run_dir}"


def next_command(config_names: list[str], system: str | None = None) -> str:
    """Return a command that follows from a run.

    >>> next_command(["digits_fedacs.yaml"])
    'fl-lightning compare --config digits.yaml --algorithms fedavg,fedacs,limitedfedacs --seeds 0:3'
    >>> next_command(["digits.yaml", "mine.yaml"])
    'fl-lightning diagnose --config digits.yaml'
    """
    within = "" if system is None else f" --system {system}"
    stem = Path(config_names[-1]).name.removesuffix(".yaml").removesuffix(".yml")
    data, _, algorithm = stem.partition("_")
    shipped = data in configs.names("data") and algorithm in configs.names("algorithms")
    if len(config_names) == 1 and shipped and not Path(config_names[0]).is_file():
        names = ",".join(dict.fromkeys(("fedavg", algorithm, configs.RECOMMENDED)))
        return f"fl-lightning compare --config {data}.yaml --algorithms {names} --seeds 0:3{within}"
    return f"fl-lightning diagnose --config {config_names[0]}{within}"
