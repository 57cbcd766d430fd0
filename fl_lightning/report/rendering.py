"""HTML from templates. Every text is escaped; only what a template made is taken as HTML."""

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fl_lightning.report.scales import SIZE

_FOLDER = Path(__file__).resolve().parent
_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals["SIZE"] = SIZE
_TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


def render(name: str, values: Mapping[str, object]) -> Markup:
    r"""Return the HTML of a template.

    >>> str(render("participation", {"cards": "<b>"})).partition("<p")[0]
    '&lt;b&gt;\n'
    """
    return Markup(_TEMPLATES.get_template(f"{name}.html.j2").render(values))  # templates escape what they are given


def asset(name: str) -> Markup:
    """Return a file of this package, for a style or a script element."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))  # our own file
