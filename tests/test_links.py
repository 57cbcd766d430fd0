"""The package works from a checkout whose links git has written as text files, as it does on Windows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = """
import fl_lightning.callbacks
from fl_lightning.config import compose
print(fl_lightning.callbacks.__file__, compose.FOLDER, len(compose.names("data")))
print(fl_lightning.ChannelFailures.__name__)
"""


def test_links_may_be_text_files(tmp_path):
    for name in ("fl_lightning", "callbacks", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("callbacks", "configs"):
        link = tmp_path / "fl_lightning" / name
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", SHOWN]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file, folder, number, part = done.stdout.split()
    assert Path(file) == tmp_path / "callbacks" / "__init__.py"
    assert Path(folder) == tmp_path / "configs"
    assert int(number) > 3
    assert part == "ChannelFailures"
