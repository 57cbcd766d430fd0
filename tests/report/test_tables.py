"""Tables of a stranger's runs are text and numbers alone: no TeX, no formulas, no HTML."""

import csv
import io
import json

import pytest

from fl_lightning.report import outcome
from fl_lightning.report.tables import Table
from made_runs import make_comparison

HOSTILE = (
    "^^5cinput{/etc/passwd}",
    "=HYPERLINK(1)",
    "@SUM(1)",
    "+1",
    "-1",
    "<img src=x onerror=alert(1)>",
    "a\\|b\n\n# c",
)


@pytest.mark.parametrize("name", [*HOSTILE, "![x](http://127.0.0.1)", "~\x00"])
def test_names_of_algorithms_stay_names(name):
    table = Table(
        name="t", title=name, header=("algorithm",), rows=((name,),), records=({"algorithm": name},), note=name
    )
    tex = table.to_latex()
    assert "^^" not in tex
    assert "\\input" not in tex
    assert "\x00" not in tex
    (_, (cell,)) = csv.reader(io.StringIO(table.to_csv()))
    assert cell[:1] not in "=+-@\t\r"
    assert cell.removeprefix("'") == name
    markdown = table.to_markdown()
    assert "<" not in markdown
    assert "](" not in markdown
    assert len(markdown.splitlines()) == 7


def test_numbers_stay_numbers():
    table = Table(name="t", title="", header=("a",), rows=(("1",),), records=({"difference": -0.5},))
    assert table.to_csv() == "difference\n-0.5\n"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: (run / "metrics.csv").write_text(
            "round,local_steps,computation_time\n" + "".join(f"{n},{n},{n}\n" for n in range(1, 31))
        ),
        lambda run: (run / "summary.json").write_text(
            json.dumps(json.loads((run / "summary.json").read_text()) | {"target_accuracy": 10**400})
        ),
        lambda run: (run / "config.yaml").write_text("[" * 100_000),
        lambda run: (run / "clients.csv").write_bytes(b"\xff\xfe\x00"),
    ],
    ids=["no metric", "huge", "nested", "bytes"],
)
def test_one_bad_run_is_left_out_and_named(spoil, tmp_path):
    make_comparison(tmp_path / "runs")
    bad = sorted((tmp_path / "runs").rglob("summary.json"))[0].parent
    spoil(bad)
    warned: list[str] = []
    found = outcome.load([tmp_path / "runs"], warned.append)
    found.write(tmp_path / "out", figures=False)
    assert len(found.comparison.runs) == 8
    assert found.comparison.metric == "test_accuracy"
    assert [str(bad) in text for text in warned] == [True]
    assert bad.name in (tmp_path / "out" / "index.html").read_text()
