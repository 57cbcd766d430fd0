"""``llms.txt``: the documents with one line each, for language models.

``python tests/test_llms.py`` writes it anew from the menu of the site and the pages.
"""

import re

import yaml

from documented import ROOT

FILE = ROOT / "llms.txt"


def pages(menu):
    """Yield title and file of each page of a menu."""
    for entry in menu:
        for title, below in entry.items():
            if isinstance(below, str):
                yield title, below
            else:
                yield from pages(below)


def first_sentence(text: str) -> str:
    """Return the first sentence of a page that stands in no heading, table, picture or block."""
    plain = re.sub(r"^```.*?^```|^(?:#|\||!|<|>|\*\*\*|---|\$\$|:::).*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    paragraph = next((part for part in re.split(r"\n\s*\n", plain) if part.strip()), "")
    return re.split(r"(?<=[.:?])\s", " ".join(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph).split()))[0]


def made() -> str:
    menu = yaml.safe_load(re.search(r"^nav:\n.*", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL)[0])[
        "nav"
    ]
    title = "# fl_lightning\n\n> " + first_sentence((ROOT / "README.md").read_text()).strip("*")
    lines = [
        f"- [{name}](docs/{file}): {first_sentence((ROOT / 'docs' / file).read_text())}".removesuffix(": ")
        for name, file in pages(menu)
        if not file.startswith(("api/", "http"))
    ]
    return title + "\n\n## Docs\n\n" + "\n".join(lines) + "\n"


def test_it_is_made_from_the_documents():
    assert FILE.read_text() == made(), "python tests/test_llms.py"


if __name__ == "__main__":
    FILE.write_text(made())
