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
    parser.add_argument("name", nargs="?", help=f"a kind of part ({', '.join(known.kinds)}), a class, or algorithms")
    parser.add_json()
    return parser


def main(arguments: list[str]) -> int:
    """List the kinds of parts, the parts of a kind, or the arguments of one part."""
    options = make_parser().parse_args(arguments)
    name, known = options.name, catalogue.stored()
    if name == _ALGORITHMS:
        found = methods.methods()
        if options.json:
            print_json(found.document())
        else:
            print("\n".join(methods.listed(found, width())))
        return 0
    if options.json:
        if name is None:
            print_json({"kinds": known.kinds})
        else:
            parts = known.of_kind(name) if name in known.kinds else [_find(known, name)]
            print_json({"parts": [asdict(part) for part in parts]})
        return 0
    if name is None:
        pairs = [(kind, ", ".join(part.name for part in known.of_kind(kind))) for kind in known.kinds]
        lines = ["parts by kind; `fl-lightning show KIND` has their arguments:", "", *listed(pairs, width(), 14)]
    else:
        lines = _kind(known, name) if name in known.kinds else _class(_find(known, name))
    print("\n".join(lines))
    return 0


def _find(known: Catalogue, name: str) -> Part:
    found = known.part(name) or next((part for part in known.parts.values() if part.name == name), None)
    if found is None:
        names = [*(part.name for part in known.parts.values()), *known.kinds, _ALGORITHMS]
        kinds = ", ".join(known.kinds)
        hint = configs.suggestion(name, names)
        raise configs.ConfigError(f"there is no part {name!r}{hint}: give one of {kinds}, or a class")
    return found


def _kind(known: Catalogue, kind: str) -> list[str]:
    places = [f"--{key}" for key in known.where(kind)]
    lines = [f"{kind}:", *(f"  stands at {place}" for place in places[:3])]
    for part in known.of_kind(kind):
        lines += ["", *_class(part)]
    return lines


def _class(part: Part) -> list[str]:
    indented = [f"  {line.strip()}" for line in listed([("", part.help)], width() - 2, 0)]
    arguments = [(f"{each.name}: {each.type}", _meaning(each)) for each in part.arguments]
    return [part.path, *indented, *listed(arguments, width(), 26)]


def _meaning(argument: Argument) -> str:
    default = "must be given" if argument.default is None else f"default: {argument.default}"
    kind = f"; see `fl-lightning show {argument.kind}`" if argument.kind else ""
    text = argument.help if argument.help.strip(". ") else ""
    return f"{text} ({default}{kind})".strip()
