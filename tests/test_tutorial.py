"""The tutorial as a page and as a notebook: the same text and code, and the code runs.

``python tests/test_tutorial.py`` writes the notebook anew from the page, with its outputs.
"""

import re

import pytest

from documented import ROOT

nbformat = pytest.importorskip("nbformat")
PAGE, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"
_CODE = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)


BADGE = """[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/)

In Colab: *File, Upload notebook* with this file, put the wheel that `python -m build` leaves in `dist` beside it
(the folder on the left), and run the next cell. Where `fl_lightning` is installed it does nothing."""
INSTALL = """import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("fl_lightning") is None:
    wheels = sorted([*Path(".").glob("fl_lightning-*.whl"), *Path("../dist").glob("fl_lightning-*.whl")])
    if not wheels:
        raise FileNotFoundError("no fl_lightning-*.whl beside this notebook: make it by python -m build, and upload it")
    wheel = f"{wheels[-1].resolve()}[report]"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wheel], check=True)"""


def cells():
    """Return kind and content of each cell: texts with links that work from the folder of the examples, and code.

    The first two install the package, which readers of the page have done.
    """
    yield from (("markdown", BADGE), ("code", INSTALL))
    for place, part in enumerate(_CODE.split(PAGE.read_text())):
        text = part.strip("\n")
        if place % 2:
            yield "code", text
        elif text:
            yield "markdown", re.sub(r"\]\((?!https?:|#|\.\.)([^)]+)\)", r"](../docs/\1)", text)


def executed(changes=()):
    """Return the notebook after running it; ``changes`` replace text in its code."""
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for place, (kind, text) in enumerate(cells()):
        for before, after in changes:
            assert kind == "markdown" or text.count(before) <= 1
            text = text.replace(before, after) if kind == "code" else text
        make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        notebook.cells.append(make(text, id=f"cell-{place}"))
    return NotebookClient(notebook, timeout=900, kernel_name="python3").execute()


def printed(notebook):
    streams = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stdout"
    ]
    return "".join(output["text"] for output in streams)


def test_page_and_notebook_say_the_same():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == list(cells())


def test_the_stored_outputs_are_those_that_the_page_speaks_of():
    text = printed(nbformat.read(NOTEBOOK, as_version=4))
    assert "share of the slow half: 11% (asked for: 50%)" in text
    assert "share of the slow half: 50%" in text
    assert re.findall(r"accuracy of the averaged model: (\S+)", text) == ["0.45", "0.80", "0.89"]


def test_the_notebook_runs():
    pytest.importorskip("ipykernel")
    notebook = executed([("ROUNDS = 150", "ROUNDS = 4")])
    text = printed(notebook)
    assert text.count("accuracy of each digit") == 3
    assert re.search(r"FedACS: 0\.\d\d with [\d,]+ local steps in 4 rounds", text)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


if __name__ == "__main__":
    made = executed()
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(made, NOTEBOOK)
