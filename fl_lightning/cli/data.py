"""``fl-lightning data``: fetch data sets, or look at how one is split among the clients."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.cli.main import OneLineParser, print_json
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.output import loading

_RECORDED = ("flash", "mobiperf", "latency", "synthetic")
_SYSTEM = """# Clients as recorded: {sources}. What a recording leaves open was drawn from its distribution.
loop:
  schedule: {{class_path: fl_lightning.callbacks.HeterogeneitySchedule, init_args: {{trace: {path}}}}}
  clock: {{class_path: fl_lightning.system.Clock, init_args: {{trace: {path}}}}}
"""
_PRESETS = {"mnist": "mnist", "cifar10": "cifar"}  # of the data sets that are fetched; others are called as these are
_REAL = ("shakespeare", "writers", "fashion", "watch", "adult", "flights")
_FETCHABLE = (*_PRESETS, *_REAL, "real")
_NAMES = f"{', '.join(_FETCHABLE[:-1])}, or real: those with natural clients, all from {_REAL[0]} on"
_MOST_ROWS = 50
_MOST_LETTERS = 34  # of a client's name
Row = tuple[list[int], int, str]  # a client's examples of each class, how many examples it has, and its name
_MOST_CLASSES = 6  # that are named in a row of a narrow table


def make_parser() -> OneLineParser:
    """Return the parser of both commands."""
    parser = OneLineParser(prog="fl-lightning data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="fetch data sets and verify them")
    fetch.add_argument("names", nargs="+", choices=_FETCHABLE, metavar="NAME", help=_NAMES)
    fetch.add_argument("--root", default="datasets", help="folder to put them in (default: datasets)")
    _add_trace(commands.add_parser("trace", help="make clients of recorded phones: a trace file, and a system of it"))
    show = commands.add_parser("show", help="show how a config's data is split, as a table and a picture")
    show.add_argument("--config", default=configs.DEMO, help=f"config whose data to show (default: {configs.DEMO})")
    show.add_argument("--seed", type=int, default=0)
    show.add_argument(
        "--examples", type=int, default=3, metavar="N", help="of how many clients to print one (default: 3)"
    )
    show.add_argument("--picture", default="partition.png", help="file to draw to (default: partition.png)")
    show.add_trust()
    show.add_json()
    return parser


def main(arguments: list[str]) -> int:
    """Run ``data fetch`` or ``data show``."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "show":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    {"fetch": _fetch, "trace": _trace, "show": _show}[options.command](options, rest)
    return 0


def _fetch(options: Namespace, overrides: list[str]) -> None:
    names, root = options.names, Path(options.root)
    with loading():
        from fl_lightning.config import building

    for name in dict.fromkeys(each for given in names for each in (_REAL if given == "real" else (given,))):
        settings = configs.compose([_PRESETS.get(name, name)])
        federation = building.instantiate_data(building.parse(settings, ["--data.root", str(root)])).load(0)
        tested = sum(len(labels) for _, labels in federation.test_batches(10_000))
        print(
            f"{name}: {len(federation.sizes)} clients with {federation.sizes.sum()} training examples, "
            f"{tested} test examples in {root}, verified"
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


def _trace(options: Namespace, overrides: list[str]) -> None:
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
    config, seed = options.config, options.seed
    merged = configs.compose([config])
    early.check(merged, overrides, options.trust, tuple(vars(options)))
    from rich.console import Console

    with loading():
        from fl_lightning.config import building
    from fl_lightning.data import label_counts
    from fl_lightning.figures.clients import partition_figure
    from fl_lightning.figures.style import draw
    from fl_lightning.parts.traits import traits_of_federation

    data: Any = building.instantiate_data(building.parse(merged, overrides, options.trust))
    federation = data.load(seed)
    num_classes = getattr(data, "num_classes", None)
    if not num_classes:
        raise configs.ConfigError(f"the data of {config} has no classes to show")
    counts = label_counts(federation, num_classes)
    names = list(traits_of_federation(federation).names)
    rows: list[Row] = list(zip(counts.tolist(), federation.sizes.tolist(), names or [""] * len(counts), strict=True))
    if options.json:
        clients = [
            {"client": place, "classes": row, "examples": size} | ({"name": name} if names else {})
            for place, (row, size, name) in enumerate(rows)
        ]
        print_json({"config": config, "seed": seed, "clients": clients})
        return
    console = Console()
    named = getattr(data, "class_names", ())
    classes = [{" ": "space", "\n": "newline"}.get(name, name) for name in named or map(str, range(num_classes))]
    console.print(_table(rows[:_MOST_ROWS], classes, f"{config}, seed {seed}", console.width))
    if len(counts) > _MOST_ROWS:
        console.print(f"... and {len(counts) - _MOST_ROWS} more clients")
    _print_examples(named, federation, rows, options.examples, console)
    missing = draw(lambda: partition_figure(counts, classes), Path(options.picture))
    console.print(missing or f"picture: {options.picture}", markup=False, soft_wrap=True)


def _print_examples(classes: Sequence[str], federation: Any, rows: list[Row], number: int, console: Any) -> None:
    """Print the first example of some clients, from the smallest to the largest."""
    from fl_lightning.figures.examples import example_lines

    places = np.argsort(federation.sizes, kind="stable")
    for client in places[np.linspace(0, len(places) - 1, max(0, min(number, len(places)))).astype(np.int64)]:
        batch = federation.batch(int(client), np.array([0]))
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            return
        inputs, target = (each[0] for each in batch)
        _, size, name = rows[client]
        label = "" if target.ndim else f", class {classes[target] if classes else int(target)}"
        console.print(f"client {client}{name and f' ({name})'}, {size} examples{label}:", markup=False, soft_wrap=True)
        for line in example_lines(inputs, classes):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _table(rows: list[Row], classes: list[str], title: str, width: int) -> Any:
    """Return a column for each class where that fits into the terminal, else the largest classes of each client."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    cell = max(len(text) for text in [*classes, *(str(value) for row, _, _ in rows for value in row)])
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    longest = min(max(len(name) for _, _, name in rows), _MOST_LETTERS)
    fits = 20 + longest + len(classes) * (cell + 1) <= width
    for heading in ("client", *(["name"] if longest else []), "examples", *(classes if fits else ())):
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=True)
    if not fits:
        table.add_column("class: examples")
    for client, (counts, size, name) in enumerate(rows):
        cells = [str(value) if value else "" for value in counts] if fits else [_largest(counts, classes)]
        table.add_row(str(client), *([escape(name[:_MOST_LETTERS])] if longest else []), str(size), *map(escape, cells))
    return table


def _largest(row: list[int], classes: Sequence[str]) -> str:
    """Return the classes of which a client has most.

    >>> _largest([0, 5, 0, 9], "abcd")
    'd: 9, b: 5'
    """
    held = sorted((-count, label) for label, count in enumerate(row) if count)
    named = ", ".join(f"{classes[label]}: {-count}" for count, label in held[:_MOST_CLASSES])
    return named + (f", {len(held) - _MOST_CLASSES} more" if len(held) > _MOST_CLASSES else "")
