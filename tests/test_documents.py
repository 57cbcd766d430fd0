"""What the documents say about the package stays true when the package changes."""

import re

import pytest

from documented import DOCUMENTS
from fl_lightning.config import compose as configs


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_algorithms_are_not_counted_by_hand(path):
    assert re.findall(r"\b\d+ (?:other )?algorithms|\ball \d+ (?:of them|with)", path.read_text()) == []


def test_every_algorithm_and_data_set_is_documented():
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    for kind in ("algorithms", "data"):
        missing = [name for name in configs.names(kind) if not re.search(rf"\b{name}\b", text)]
        assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
