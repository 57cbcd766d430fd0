"""What the documents say about the package stays true when the package changes."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import TensorDataset

from documented import DOCUMENTS, blocks
from fl_lightning import FederatedModule
from fl_lightning.config import compose as configs

ROOT = Path(__file__).parents[1]


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


def test_the_package_index_is_not_asked_for_a_package_that_it_does_not_have():
    """Until the package is published, every text installs from a clone."""
    places = [path for name in ("fl_lightning", "callbacks", "docs", "examples") for path in (ROOT / name).rglob("*")]
    texts = [path for path in [*places, ROOT / "README.md"] if path.suffix in (".py", ".md", ".ipynb", ".j2")]
    assert [str(path) for path in texts if re.search(r"pip install \S*fl-lightning", path.read_text())] == []


def test_what_other_frameworks_become_runs():
    """The code after each move, with one round."""
    images, labels = torch.randn(400, 6), torch.arange(400) % 3
    known = {
        "MyModule": lambda: FederatedModule(torch.nn.Linear(6, 3), 3),
        "MyDataModule": lambda: LightningDataModule.from_datasets(
            TensorDataset(images, labels), test_dataset=TensorDataset(images, labels)
        ),
        "make_dataset": lambda user: TensorDataset(images[4 * user : 4 * user + 4], labels[4 * user : 4 * user + 4]),
        "test_dataset": TensorDataset(images, labels),
    }
    code = [body for _, body in blocks(ROOT / "docs" / "coming_from.md") if "FederatedLoop" in body]
    assert len(code) == 3
    for body in code:
        exec(body.replace("rounds=50", "rounds=1"), known)
