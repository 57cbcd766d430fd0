"""``--json``: one document on standard output, with the keys that ``docs/programs.md`` lists."""

import json
import math
import re

import pytest

from documented import ROOT
from fl_lightning.cli.main import main
from made_runs import make_comparison

PAGE = (ROOT / "docs" / "programs.md").read_text()


def printed(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def listed(command):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `fl-lightning {command}"))
    return set(re.findall(r"`(\w+)`", row.split("|")[2]))


def keys(document):
    if isinstance(document, dict):
        return set(document) | set().union(*(keys(each) for each in document.values()))
    return set().union(*(keys(each) for each in document)) if isinstance(document, list) else set()


def test_diagnose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = printed(capsys, "diagnose", "--config", "digits.yaml", "--algorithms", "fedavg,limitedfedacs,krum,scaffold")
    assert keys(found) == listed("diagnose")
    assert found["recommended"] == "limitedfedacs"
    assert found["unknown"] == ["krum"]
    by_name = {each["name"]: each for each in found["algorithms"]}
    assert by_name["scaffold"]["variance"] is None
    assert math.isclose(sum(by_name["fedavg"]["effective_weights"]), 1)
    assert list(tmp_path.iterdir()) == []


def test_data_and_parts(capsys):
    found = printed(capsys, "data", "show", "--config", "digits.yaml")
    assert keys(found) == listed("data") - {"name"}  # these clients have none
    assert sum(row["examples"] for row in found["clients"]) == sum(sum(row["classes"]) for row in found["clients"])
    found = printed(capsys, "show", "sampler")
    assert listed("show") - {"kinds"} <= keys(found)
    assert "fl_lightning.samplers.HeterogeneityAware" in [part["path"] for part in found["parts"]]
    assert "sampler" in printed(capsys, "show")["kinds"]


def test_report(tmp_path, capsys):
    runs = make_comparison(tmp_path)
    before = sorted(runs.rglob("*"))
    found = printed(capsys, "report", str(runs))
    assert set(found) == {"metric", "reference", "tables"} < listed("report")
    assert [len(rows) for rows in found["tables"].values()] == [3] * len(found["tables"])
    assert {"final", "equal_cost", "classes"} <= set(found["tables"])
    assert sorted(runs.rglob("*")) == before  # nothing was written
