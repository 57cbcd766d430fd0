"""``fl-lightning report``: a page, figures and tables from the folders of finished runs."""

import argparse
import os
import sys
from pathlib import Path

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.config.compose import ConfigError


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning report", description=__doc__, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--out", help="folder to write to (default: report in the first of RUNS)")
    parser.add_argument("--reference", default="fedacs", help="what the others are compared with (default: fedacs)")
    parser.add_argument("--targets", help="accuracies, separated by commas (default: the configs' own)")
    parser.add_argument("--no-figures", action="store_true", help="make no PNG and SVG figures")
    parser.add_argument(
        "--logger",
        choices=("auto", "wandb", "none"),
        default="auto",
        help="log the report to W&B too; auto does so when the runs were logged there",
    )
    parser.add_argument("--project", help="W&B project (default: WANDB_PROJECT, or the name of the first of RUNS)")
    return parser


def main(arguments: list[str]) -> int:
    """Read the runs, say what is left out, and write the report."""
    options = make_parser().parse_args(arguments)
    targets = _targets(options.targets)
    from fl_lightning.report import comparison, writing
    from fl_lightning.runs import reading as loading

    folders = [Path(name) for name in options.runs]
    runs, problems = loading.load_all(folders)
    for problem in problems:
        print(f"fl-lightning: {problem}", file=sys.stderr)
    compared = comparison.compare(runs, options.reference, targets)
    if compared.reference.runs[0].algorithm != options.reference and compared.reference.name != options.reference:
        print(
            f"fl-lightning: no run of {options.reference}: the others are compared with {compared.reference.name}",
            file=sys.stderr,
        )
    out = Path(options.out) if options.out else folders[0] / "report"
    files = writing.write(compared, problems, out, figures=not options.no_figures)
    page = out / "index.html"
    print(f"{page if page in files else out}: {len(compared.entries)} algorithms, {len(runs)} runs, {len(files)} files")
    logged = any("wandb" in str(run.config.get("logger")) for run in runs)
    if options.logger == "wandb" or (options.logger == "auto" and logged):
        from fl_lightning.cli.artifacts import log_report

        project = options.project or os.environ.get("WANDB_PROJECT") or folders[0].resolve().name
        log_report(out, compared, project)
    return 0


def _targets(text: str | None) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(f"--targets {text!r} must be numbers separated by commas: 0.5,0.7") from None
    for value in values:
        if not 0 < value <= 1:
            raise ConfigError(f"--targets {value:g} must be above 0 and at most 1")
    return sorted(set(values))
