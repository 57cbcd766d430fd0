"""``fl-lightning audit``: what a federation of any framework has optimised, from its log of participation."""

import sys
from pathlib import Path

from fl_lightning.cli.main import OneLineParser

TOO_FAR = 3  # exit code


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(
        prog="fl-lightning audit",
        description="Show what a federation has really optimised, who counts more or less than wanted, and what would "
        "help. Works for any framework: the log has a row for each client and round, with the columns round, client, "
        "asked, arrived and, as far as known, examples, steps, weight, applied, update_norm, staleness.",
        allow_abbrev=False,
    )
    parser.add_argument("log", metavar="LOG", help="a CSV file, or JSON lines (.jsonl)")
    parser.add_argument(
        "--wanted",
        choices=("examples", "equal"),
        help="the objective to compare with (default: the shares of examples, equal weights where the log has none)",
    )
    parser.add_argument(
        "--aggregation",
        choices=("ratio", "sum"),
        default="ratio",
        help="ratio: weights are divided by the sum of what arrived in the round, as Flower and "
        "NVFlare do (default); sum: by a constant",
    )
    parser.add_argument("--epochs", type=float, help="local epochs, where the log has no steps")
    parser.add_argument("--batch_size", type=int, help="likewise")
    parser.add_argument(
        "--assume",
        choices=("equal", "epochs"),
        help="where nobody knows the steps: all alike, or proportional to examples",
    )
    parser.add_argument(
        "--fail-above",
        type=float,
        metavar="L1",
        help=f"exit with {TOO_FAR} if the low end of the distance from what is wanted, 0 to 2, is above",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--picture", metavar="FILE", help="file to draw to, PNG, SVG or PDF by its ending")
    parser.add_argument("--page", metavar="FILE", help="HTML file with words, tables and picture")
    return parser


def main(arguments: list[str]) -> int:
    """Audit a log."""
    options = make_parser().parse_args(arguments)
    from rich.console import Console

    from fl_lightning.audit import words
    from fl_lightning.audit.cures import cures
    from fl_lightning.audit.estimate import audit
    from fl_lightning.audit.log import read_log

    log = read_log(options.log)
    found = audit(
        log,
        wanted=options.wanted,
        aggregation=options.aggregation,
        epochs=options.epochs,
        batch_size=options.batch_size,
        assume=options.assume,
    )
    failed = options.fail_above is not None and words.too_far(found, options.fail_above, options.assume)
    helps = cures(found)
    if options.json:
        print(words.as_json(found, helps))
    else:
        console = Console(width=None if sys.stdout.isatty() else words.WIDE)
        words.show(console, found, helps, options.log)
    made = words.draw_picture(found, helps, Path(options.picture)) or options.picture if options.picture else None
    if options.page:
        words.write_page(found, helps, Path(options.page), options.log)
    for line in filter(None, (made, options.page)):
        print(line, file=sys.stderr if options.json else sys.stdout)
    if options.fail_above is not None and found.distance.high > options.fail_above:
        said = "is above" if failed else "may be above"
        value, low, _ = found.distance
        text = f"the distance {value:.3f}, at least {low:.3f} in 19 of 20 logs, {said} {options.fail_above:g}"
        print(f"fl-lightning: {text}", file=sys.stderr)
    return TOO_FAR if failed else 0
