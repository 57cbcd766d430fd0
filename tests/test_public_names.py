"""What ``import fl_lightning`` offers: lazily, completely, and as type checkers see it."""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fl_lightning

ROOT = Path(__file__).resolve().parent.parent


def test_dir_shows_the_public_names_alone():
    assert dir(fl_lightning) == sorted([*fl_lightning.__all__, "__version__"])
    assert len(fl_lightning.__all__) == len(set(fl_lightning.__all__))
    assert fl_lightning.__version__ == version("fl-lightning")


@pytest.mark.parametrize("name", fl_lightning.__all__)
def test_a_public_name_is_the_class_or_function_of_that_name(name):
    found = getattr(fl_lightning, name)
    assert isinstance(found, type) == name[0].isupper()
    assert callable(found)
    assert found.__name__ == name
    assert found.__module__.startswith("fl_lightning.")


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'FederatedLop'"):
        _ = fl_lightning.FederatedLop


def test_type_checkers_see_the_same_names():
    """The imports that only a type checker executes must match the table that Python uses."""
    block = next(node for node in ast.parse(Path(fl_lightning.__file__).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imports for alias in node.names}
    assert seen == {(f"fl_lightning.{home}", name) for home, names in fl_lightning._HOMES.items() for name in names}
    assert all(alias.asname == alias.name for node in imports for alias in node.names)  # re-exported


def test_the_documents_use_every_public_name():
    paths = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in paths)))
    assert set(fl_lightning.__all__) <= words


def test_looking_at_the_names_imports_nothing_heavy():
    code = "import sys, fl_lightning; dir(fl_lightning); fl_lightning.__version__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
