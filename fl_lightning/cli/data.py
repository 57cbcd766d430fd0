"""``fl-lightning data``: fetch data sets, or look at how one is split among the clients."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.cli.main import OneLineParser, print_json
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.output import loading

_FETCHABLE = ("mnist", "cifar10")
_RECORDED = ("flash", "mobiperf", "latency", "synthetic")
_SYSTEM = """# Clients as recorded: {sources}. What a recording leaves open was drawn from its distribution.
loop:
  schedule: {{class_path: fl_lightning.callbacks.HeterogeneitySchedule, init_args: {{trace: {path}}}}}
  clock: {{class_path: fl_lightning.system.Clock, init_args: {{trace: {path}}}}}
"""
_MOST_ROWS = 50
_MOST_CLASSES = 6  # that are named in a row of a narrow table


def make_parser() -> OneLineParser:
    """Return the parser of both commands."""
    parser = OneLineParser(prog="fl-lightning data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="fetch data sets and verify them")
    fetch.add_argument("names", nargs="+", choices=_FETCHABLE, metavar="NAME", help=" or ".join(_FETCHABLE))
    fetch.add_argument("--root", default="datasets", help="folder to put them in (default: datasets)")
    _add_trace(commands.add_parser("trace", help="make clients of recorded phones: a trace file, and a system of it"))
    show = commands.add_parser("show", help="show how a config's data is split, as a table and a picture")
    show.add_argument("--config", default=configs.DEMO, help=f"config whose data to show (default: {configs.DEMO})")
    show.add_argument("--seed", type=int, default=0)
    show.add_argument("--picture", default="partition.png", help="file to draw to (default: partition.png)")
    show.add_trust()
    show.add_json()
    return parser


def main(arguments: list[str]) -> int:
    """Run ``data fetch`` or ``data show``."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "fetch":
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        _fetch(options.names, Path(options.root))
    elif options.command == "trace":
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        _trace(options)
    else:
        early.check(configs.compose([options.config]), rest, options.trust, ("config", "picture", "trust", "json"))
        _show(options, rest)
    return 0


def _fetch(names: list[str], root: Path) -> None:
    from fl_lightning.data import load_cifar10, load_mnist  # heavy: torch

    for name in names:
        images = (load_mnist if name == "mnist" else load_cifar10)(root)
        print(
            f"{name}: {len(images.train_labels)} training and {len(images.test_labels)} test images in {root}, verified"
        )


def _add_trace(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("names", nargs="+", choices=_RECORDED, metavar="SOURCE", help=f"some of {', '.join(_RECORDED)}")
    add("--clients", type=int, required=True, metavar="M", help="how many there are to be")
    add("--out", required=True, metavar="CSV", help="file to write; a system of it, --system, is written beside it")
    add("--file", action="append", default=[], metavar="[SOURCE=]PATH", help="a recording of your own, not fetched")
    add("--root", default="datasets", help="folder of fetched recordings (default: datasets)")
    add("--seed", type=int, default=0, help="decides who is taken (default: 0)")
    add("--days", type=int, default=7, help="length of the trace (default: 7)")
    add("--minutes", type=float, default=60.0, help="from one round to the next (default: 60)")
    add("--round_seconds", type=float, default=60.0, help="that a phone must stay ready in a round (default: 60)")
    add("--num_steps", type=int, default=10, help="local steps that clients are asked for (default: 10)")


def _trace(options: Namespace) -> None:
    out = Path(options.out)
    system = out.with_suffix(".yaml")
    for path in (out, system):
        if path.exists():
            raise configs.ConfigError(f"{path} exists: give another --out, or remove it")
    if out.suffix != ".csv":
        raise configs.ConfigError(f"--out {out} must end in .csv")
    given = {}
    for text in options.file:
        name, equals, path = text.partition("=")
        name, path = (name, path) if equals and name in _RECORDED else (options.names[0], text)
        if name not in options.names or name in given or name == "synthetic":
            raise configs.ConfigError(f"--file {text}: give SOURCE=PATH, once for a source that is named")
        given[name] = Path(path)
    from fl_lightning.data import recorded  # heavy: torch
    from fl_lightning.output import write_durably

    span = recorded.Span(
        days=options.days,
        minutes=options.minutes,
        round_seconds=options.round_seconds,
        num_steps=options.num_steps,
    )
    wanted = [name for name in options.names if name != "synthetic"]
    files = {name: given.get(name) or recorded.recording(name, Path(options.root)) for name in wanted}
    made = recorded.phone_trace(files, options.clients, options.seed, span)
    write_durably(out, made.as_csv().encode())
    write_durably(system, _SYSTEM.format(path=json.dumps(str(out)), sources=", ".join(options.names)).encode())
    there = made.available.mean(axis=0)
    print(
        f"{out}: {len(there)} clients in {len(made.available)} rounds, ready in {100 * np.median(there):.1f} % of them "
        f"(median), {(there == 0).sum()} never, {made.available.sum(axis=1).mean():.1f} in a round"
    )
    print(f"next: fl-lightning diagnose --config DATA.yaml --system {system}")


def _show(options: Namespace, overrides: list[str]) -> None:
    config, seed, picture = options.config, options.seed, Path(options.picture)
    from rich.console import Console

    with loading():
        from fl_lightning.config import building
    from fl_lightning.data import label_counts
    from fl_lightning.figures.clients import partition_figure
    from fl_lightning.figures.style import draw

    data: Any = building.instantiate_data(building.parse(configs.compose([config]), overrides, options.trust))
    federation = data.load(seed)
    num_classes = getattr(data, "num_classes", None)
    if not num_classes:
        raise configs.ConfigError(f"the data of {config} has no classes to show")
    counts = label_counts(federation, num_classes)
    if options.json:
        rows = [{"client": place, "classes": row, "examples": sum(row)} for place, row in enumerate(counts.tolist())]
        print_json({"config": config, "seed": seed, "clients": rows})
        return
    console = Console()
    console.print(_table(counts[:_MOST_ROWS].tolist(), f"{config}, seed {seed}", console.width))
    if len(counts) > _MOST_ROWS:
        console.print(f"... and {len(counts) - _MOST_ROWS} more clients")
    names = [str(value) for value in range(num_classes)]
    missing = draw(lambda: partition_figure(counts, names), picture)
    console.print(missing or f"picture: {picture}", markup=False, soft_wrap=True)


def _table(counts: list[list[int]], title: str, width: int) -> Any:
    """Return a column for each class where that fits into the terminal, else the largest classes of each client."""
    from rich import box
    from rich.table import Table

    num_classes = len(counts[0])
    cell = max(len(str(value)) for row in [*counts, [num_classes - 1]] for value in row)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    fits = 20 + num_classes * (cell + 1) <= width
    for name in ("client", "examples", *(map(str, range(num_classes)) if fits else ())):
        table.add_column(name, justify="right", no_wrap=True)
    if not fits:
        table.add_column("class: examples")
    for client, row in enumerate(counts):
        classes = [str(value) if value else "" for value in row] if fits else [_largest(row)]
        table.add_row(str(client), str(sum(row)), *classes)
    return table


def _largest(row: list[int]) -> str:
    """Return the classes of which a client has most.

    >>> _largest([0, 5, 0, 9])
    '3: 9, 1: 5'
    """
    held = sorted((-count, label) for label, count in enumerate(row) if count)
    named = ", ".join(f"{label}: {-count}" for count, label in held[:_MOST_CLASSES])
    return named + (f", {len(held) - _MOST_CLASSES} more" if len(held) > _MOST_CLASSES else "")
