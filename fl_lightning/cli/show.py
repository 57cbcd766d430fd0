"""``fl-lightning show``: the parts that can stand in a config, with their arguments; the shipped algorithms."""

from dataclasses import asdict

from fl_lightning.cli.main import OneLineParser, listed, print_json, width
from fl_lightning.config import catalogue, methods
from fl_lightning.config import compose as configs
from fl_lightning.config.catalogue import Argument, Catalogue, Part

_ALGORITHMS = "algorithms"  # every shipped one, from one table


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning show", description=__doc__)
    known = catalogue.stored()
    parser.add_argument(
        "name", nargs="?", help=f"a kind of part ({', '.join(known.kinds)}), systems, algorithms, or a class"
    )
    parser.add_json()
    return parser


def main(arguments: list[str]) -> int:
    """List the kinds of parts, the parts of a kind, or the arguments of one part."""
    options = make_parser().parse_args(arguments)
    document, lines = _answer(options.name)
    if options.json:
        print_json(document)
    else:
        print("\n".join(lines))
    return 0


def _answer(name: str | None) -> tuple[dict[str, object], list[str]]:
    """Return what there is of a name, for programs and for people."""
    known = catalogue.stored()
    if name == "systems":
        return _systems()
    if name == _ALGORITHMS:
        return methods.methods().document(), methods.listed(methods.methods(), width())
    if name is None:
        pairs = [(kind, ", ".join(part.name for part in known.of_kind(kind))) for kind in known.kinds]
        heading = "parts by kind; `fl-lightning show KIND` has their arguments:"
        return {"kinds": known.kinds}, [heading, "", *listed(pairs, width(), 14)]
    parts = known.of_kind(name) or [_find(known, name)]
    lines = [line for part in parts for line in ("", *_class(part))]
    if name in known.kinds:
        lines = [f"{name}:", *(f"  stands at --{key}" for key in known.where(name)[:3]), *lines]
    return {"parts": [asdict(part) for part in parts]}, lines if name in known.kinds else lines[1:]


def _systems() -> tuple[dict[str, object], list[str]]:
    """Return the shipped systems: what each is for, and its settings."""
    lines = ["systems, for --system NAME or a line `system: NAME` in a config; a file of your own does as well:"]
    for name in configs.names("systems"):
        text = (configs.FOLDER / "systems" / f"{name}.yaml").read_text()
        lines += ["", f"{name}:", *(f"  {line}" for line in text.splitlines())]
    return {"systems": {name: configs.compose([], name)["loop"] for name in configs.names("systems")}}, lines


def _find(known: Catalogue, name: str) -> Part:
    found = known.part(name) or next((part for part in known.parts.values() if part.name == name), None)
    if found is None:
        names = [*(part.name for part in known.parts.values()), *known.kinds, "systems", _ALGORITHMS]
        kinds = ", ".join(known.kinds)
        hint = configs.suggestion(name, names)
        raise configs.ConfigError(f"there is no part {name!r}{hint}: give one of {kinds}, or a class")
    return found


def _class(part: Part) -> list[str]:
    indented = [f"  {line.strip()}" for line in listed([("", part.help)], width() - 2, 0)]
    arguments = [(f"{each.name}: {each.type}", _meaning(each)) for each in part.arguments]
    return [part.path, *indented, *listed(arguments, width(), 26)]


def _meaning(argument: Argument) -> str:
    default = "must be given" if argument.default is None else f"default: {argument.default}"
    kind = f"; see `fl-lightning show {argument.kind}`" if argument.kind else ""
    text = argument.help if argument.help.strip(". ") else ""
    return f"{text} ({default}{kind})".strip()
