"""Formulas as MathML, made while the site is built: no script, no font and no network is needed to read them.

``$...$`` and ``$$...$$`` in pages are found by pymdownx.arithmatex; the formulas of docstrings are brought into the
same form before they are rendered, and their doctests into blocks of code.
"""

import ast
import html
import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
_ROLE = re.compile(r":math:`([^`]+)`")
_DOCTEST = re.compile(r"^([ \t]*)>>> .*(?:\n[ \t]*\S.*)*", re.MULTILINE)
_DIRECTIVE = re.compile(r"^([ \t]*)\.\. math::[ \t]*(.*?)(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)


class Docstrings(griffe.Extension):
    """Turns the math and the doctests of docstrings into those of pages, and shows what packages import as theirs."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of whatever was found."""
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(with_dollars(obj.docstring.value))

    def on_alias_instance(self, *, node: ast.ImportFrom, alias: griffe.Alias, **_: Any) -> None:
        """Show ``Name`` on the page of a package with ``from package.file import Name as Name``."""
        if any(each.name == each.asname == alias.name for each in node.names):
            alias.public = True


def with_dollars(text: str) -> str:
    r"""Return a docstring with its roles and directives of math in dollars.

    >>> with_dollars("The sum\n\n.. math::\n    a_m +\n    b\n\nof :math:`a_m`.")
    'The sum\n\n$$a_m + b$$\n\nof $a_m$.'
    """
    text = _DIRECTIVE.sub(lambda found: f"{found[1]}$${_one_line(found[2])}$$", text)
    return _ROLE.sub(lambda found: f"${_one_line(found[1])}$", text)


def with_blocks(text: str) -> str:
    r"""Return a docstring with its doctests as blocks of code: Markdown reads the output ``[1]`` as a reference.

    >>> with_blocks("Adds.\n\n>>> [1 + 1]\n[2]\n\nThat is all.")
    'Adds.\n\n```pycon\n>>> [1 + 1]\n[2]\n```\n\nThat is all.'
    """
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of a page that is HTML by now."""
    content = _INLINE.sub(lambda found: _math(found[1], "inline"), content)
    return _DISPLAY.sub(lambda found: _math(found[1], "block"), content)


def _math(source: str, display: str) -> str:
    return convert(html.unescape(source).strip(), display=display)
