"""What an offline run of W&B holds."""

import json
import subprocess
import sys

import pytest


def read_back(folder):
    """Return the records of the one offline run below a folder."""
    (file,) = folder.rglob("run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this wandb cannot read its files back: {done.stderr[-200:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def summary_and_rows(folder):
    """Return the summary and the rows of the one offline run below a folder."""
    summary, rows = {}, []
    for record in read_back(folder):
        summary |= record.get("summary", {}).get("update", {})
        rows += [record["history"]["item"]] if record.get("type") == "history" else []
    return summary, rows
