"""``fl-lightning data``: fetch data sets, or look at how one is split among the clients."""

from pathlib import Path
from typing import Any

from fl_lightning.cli import configs
from fl_lightning.cli.arguments import OneLineParser

_FETCHABLE = ("mnist", "cifar10")


def main(arguments: list[str]) -> int:
    """Run ``data fetch`` or ``data show``."""
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
    options, rest = parser.parse_known_args(arguments)
    if options.command == "fetch":
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        _fetch(options.names, Path(options.root))
    else:
        _show(options.config, options.seed, Path(options.picture), rest, options.trust)
    return 0


def _fetch(names: list[str], root: Path) -> None:
    from fl_lightning.data import load_cifar10, load_mnist  # heavy: torch

    for name in names:
        images = (load_mnist if name == "mnist" else load_cifar10)(root)
        print(
            f"{name}: {len(images.train_labels)} training and {len(images.test_labels)} test images in {root}, verified"
        )


def _show(config: str, seed: int, picture: Path, overrides: list[str], trusted: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fl_lightning.cli import building  # heavy: torch, lightning
    from fl_lightning.data import label_counts, partition_figure
    from fl_lightning.figures.style import save

    data: Any = building.instantiate_data(building.parse(configs.compose([config]), overrides, trusted))
    federation = data.load(seed)
    num_classes = getattr(data, "num_classes", None)
    if not num_classes:
        raise configs.ConfigError(f"the data of {config} has no classes to show")
    counts = label_counts(federation, num_classes)
    table = Table("client", "examples", *map(str, range(num_classes)), title=f"{config}, seed {seed}")
    for client, row in enumerate(counts[:50]):
        table.add_row(str(client), str(row.sum()), *(str(value) if value else "" for value in row))
    console = Console()
    console.print(table)
    if len(counts) > 50:
        console.print(f"... and {len(counts) - 50} more clients")
    picture.parent.mkdir(parents=True, exist_ok=True)
    save(partition_figure(counts, [str(value) for value in range(num_classes)]), picture)
    console.print(f"picture: {picture}")
