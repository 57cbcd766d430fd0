"""One file says what every algorithm is: pages, command and citations are made from it.

``python tests/config/test_methods.py`` writes the pages anew.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.config import methods as module
from fl_lightning.config.methods import Method, methods

DOCS = Path(__file__).parents[2] / "docs"
MARKED = re.compile(r"(<!-- made from configs/methods.yaml -->\n).*?(<!-- end -->)", re.DOTALL)


HEADINGS = ("name", "method", "rule", "needs to know", "keeps", "sends", "Omega", "variance", "L1", "year", "cite")


def cells(each: Method) -> list[str]:
    """Return a row in the order of the headings."""
    read = f" (read from the {each.read})" if each.read else ""
    words = [each.name, each.method + read, each.rule, each.needs or "nothing", each.keeps, each.sends, each.omega]
    return [*words, each.variance, each.l1, str(methods().papers[each.cite].year), each.cite]


def tables() -> str:
    """Return a table for each group that has methods."""
    lines: list[str] = []
    for group, title in methods().groups.items():
        members = [each for each in methods().methods if each.corrects == group]
        if members:
            lines += [f"### {title}", "", f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
            for each in members:
                name, *others, cite = cells(each)
                shown = " | ".join(cell.replace("|", "\\|") for cell in others)
                lines.append(f"| `{name}` | {shown} | [{cite}](citing.md#{cite}) |")
            lines.append("")
    return "\n".join(lines)


def bibliography() -> str:
    """Return all BibTeX entries, each below its key."""
    keys = sorted({each.cite for each in methods().methods})
    return "\n".join(f"### {key}\n\n```bibtex\n{methods().papers[key].bibtex}\n```\n" for key in keys)


MADE = {"algorithms.md": tables, "citing.md": bibliography}


def written(page: str) -> str:
    """Return a page with its generated part made anew."""
    made = MADE[page]()
    text, number = MARKED.subn(lambda found: f"{found[1]}\n{made}\n{found[2]}", (DOCS / page).read_text())
    assert number == 1, f"{page} has no place for what is made"
    return text


def test_every_preset_has_an_entry_and_every_entry_a_preset():
    assert sorted(each.name for each in methods().methods) == configs.names("algorithms")


@pytest.mark.parametrize("page", MADE)
def test_pages_are_what_the_file_says(page):
    assert (DOCS / page).read_text() == written(page), "run python tests/config/test_methods.py"


def test_every_paper_is_cited_and_its_entry_is_whole():
    assert {each.cite for each in methods().methods} == set(methods().papers)
    for paper in methods().papers.values():
        assert paper.bibtex.count("{") == paper.bibtex.count("}")
        assert re.search(r"year = \{(19|20)\d\d\}\n\}$", paper.bibtex)


def test_the_command_lists_all_of_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["show", "algorithms"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in configs.names("algorithms"))
    assert max(map(len, out.splitlines())) <= 100
    assert main(["show", "algorithms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = next(each for each in found["algorithms"] if each["name"] == "fedcote")
    assert (row["cite"], row["year"], row["read"]) == ("wang2025fedcote", 2025, "abstract")
    assert any("@inproceedings{mcmahan2017," in each["bibtex"] for each in found["papers"])


@pytest.mark.parametrize(
    ("change", "named"),
    [({"cite": "nobody2020"}, "corrects or cite"), ({"colour": "red"}, "colour"), ({"corrects": "all"}, "corrects or")],
)
def test_a_wrong_entry_is_named(change, named, tmp_path, monkeypatch):
    said = yaml.safe_load((configs.FOLDER / "methods.yaml").read_text())
    said["methods"]["fedavg"] |= change
    (tmp_path / "methods.yaml").write_text(yaml.safe_dump(said))
    monkeypatch.setattr(configs, "FOLDER", tmp_path)
    with pytest.raises(configs.ConfigError, match=rf"fedavg must have .*wrong: {named}"):
        module.methods.__wrapped__()


def test_nothing_is_cited_for_algorithms_of_your_own():
    assert methods().to_cite(["mine", "yours"]) == ""


if __name__ == "__main__":
    for name in MADE:
        (DOCS / name).write_text(written(name))
