"""``fl-lightning data``: fetch data sets, or look at how one is split among the clients."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from fl_lightning.cli.main import OneLineParser, print_json
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.output import loading

_FETCHABLE = ("mnist", "cifar10")
_MOST_ROWS = 50
_MOST_CLASSES = 6  # that are named in a row of a narrow table


def make_parser() -> OneLineParser:
    """Return the parser of both commands."""
    parser = OneLineParser(prog="fl-lightning data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="fetch data sets and verify them")
    fetch.add_argument("names", nargs="+", choices=_FETCHABLE, metavar="NAME", help=" or ".join(_FETCHABLE))
    fetch.add_argument("--root", default="datasets", help="folder to put them in (default: datasets)")
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
