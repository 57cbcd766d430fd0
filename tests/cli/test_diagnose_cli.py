"""The command ``diagnose`` as a user runs it."""

import re

import numpy as np
import pytest

from documented import ROOT
from fl_lightning.cli import demo
from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.config.algorithm_parts import split_overrides, without_algorithm
from fl_lightning.diagnosis.given_clients import read_clients

PICTURES = [
    ("diagnosis.svg", ["--config", "mnist.yaml"]),
    ("diagnosis_four.svg", ["--config", "mnist.yaml", "--algorithms", "fedavg,fedacs,limitedfedacs,fednova,cafedavg"]),
]


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    code = main(["diagnose", *arguments])
    output = capsys.readouterr()
    return code, " ".join(output.out.split()), output.err


def test_the_papers_mnist_without_its_data(in_folder, capsys):
    blocks = ["--data.partition.assignment", "blocks"]
    code, out, _ = run(capsys, "--config", "mnist.yaml", "--all", *blocks)
    assert code == 0
    assert "clients 0-9 carry 51 % of the weight but 12 % of the objective" in out
    assert "classes 0-4 carry 51 % of the weight but 12 % of the objective" in out
    assert "Recommended: limitedfedacs" in out
    assert out.index("Recommended:") < out.index("What each algorithm would really optimise")
    assert "Soonest on the clock, by forecast: consistentfedbuff" in out
    assert "uploads of consistentfedbuff are old: at a learning rate that suits others, it may not learn at all" in out
    assert out.count("depends on") == 14  # the data: eight samplers, three robust centres, three adaptive servers
    assert (in_folder / "diagnosis.png").stat().st_size > 10_000
    assert list(in_folder.iterdir()) == [in_folder / "diagnosis.png"]  # nothing was fetched, no run was made


def test_an_algorithm_that_never_succeeds_is_left_out_and_the_others_are_diagnosed(in_folder, capsys, caplog):
    (in_folder / "clients.csv").write_text("num_steps,failure_rate\n1,0.1\n10,0.5\n30,0\n")
    code, out, _ = run(capsys, "--clients", "clients.csv", "--algorithms", "fedavg,fedacs,secaggfedacs")
    assert code == 0
    assert "Recommended: fedacs" in out
    assert "secaggfedacs" not in out
    assert caplog.messages == ["secaggfedacs is left out: no upload of any client would ever count"]


def test_the_verdict_is_three_lines_before_the_few_that_matter(in_folder, capsys):
    assert main(["diagnose", "--config", "digits.yaml"]) == 0
    out = capsys.readouterr().out
    verdict, _, rest = out.partition("What each algorithm")
    recommended = f"Recommended: {configs.RECOMMENDED}."
    assert all(words in verdict for words in ("FedAvg would optimise", recommended, "It must know:"))
    assert demo._NAMES[1] == configs.RECOMMENDED  # what the demo trains
    rows = re.findall(r"^│ (\w+) +│", rest, re.MULTILINE)
    assert rows[0] == "limitedfedacs"
    assert {"fedavg", "fedacs", "consistentfedbuff"} < set(rows)
    assert len(rows) < 9
    hidden = len(configs.names("algorithms")) - len(rows)
    assert f"{hidden} other algorithms: --all" in rest


@pytest.mark.parametrize(("file", "arguments"), PICTURES)
def test_the_pictures_of_the_documents_star_what_is_recommended(in_folder, capsys, file, arguments):
    assert run(capsys, *arguments, "--picture", file)[0] == 0
    found, stored = (written(path) for path in (in_folder / file, ROOT / "docs" / "images" / file))
    assert found == stored, f"draw it anew: fl-lightning diagnose {' '.join(arguments)} --picture docs/images/{file}"
    assert sum("limitedfedacs ★" in text for text in found) == 1


def written(path):
    """Return the texts of a picture."""
    return [text for text in re.findall(r"<!-- (.*) -->", path.read_text()) if re.search(r"[a-z]{3}", text)]


def test_a_table_of_clients(in_folder, capsys):
    (in_folder / "clients.csv").write_text("Weight;T;q\n1;5;0.1\n2;10;0.2\n1;1;0.5\n")
    code, out, _ = run(capsys, "--clients", "clients.csv", "--algorithms", "fedacs,fedavg", "--clients_per_round", "2")
    assert code == 0
    assert "client 2 carries 25 % of the weight but 2 % of the objective" in out
    assert "Recommended: fedacs" in out
    assert "failure rates and local work of all clients before it draws; not who sent what" in out


def test_clients_that_are_alike_need_no_remedy(in_folder, capsys):
    (in_folder / "clients.csv").write_text("num_steps,failure_rate\n" + "5,0.1\n" * 4)
    _, out, _ = run(capsys, "--clients", "clients.csv", "--algorithms", "all", "--clients_per_round", "2")
    assert "FedAvg optimises the objective you asked for" in out
    assert "Recommended: fedavg" in out


def test_overrides_reach_the_environment_and_the_algorithm(in_folder, capsys):
    arguments = ["--config", "toy.yaml", "--algorithms", "fedavg", "--loop.schedule.failure_rates", "0.5"]
    code, out, _ = run(capsys, *arguments, "--loop.solver.momentum", "0.5", "--picture", "a/b.png")
    assert code == 0
    assert (in_folder / "a" / "b.png").is_file()
    assert "None of these algorithms optimises your objective. Nearest: fedavg" in out


def test_what_a_table_of_clients_leaves_open_can_be_given_and_the_rest_is_refused(in_folder, capsys):
    (in_folder / "c.csv").write_text("T,q\n5,0.1\n9,0.4\n2,0.3\n")
    table = ["--clients", "c.csv", "--algorithms", "fedacs,fedavg"]
    _, plain, _ = run(capsys, *table)
    _, slow, _ = run(capsys, *table, "--loop.clock.seconds_per_step", "10")
    seconds = [float(re.search(r"fedacs, ([\d.]+) s per round", out)[1]) for out in (plain, slow)]
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=0.02)
    kept = [re.search(r"keeps (\d+) % of the variance", run(capsys, *table, *more)[1])[1] for more in (
        [], ["--loop.lr", "0.3"], ["--loop.rounds", "10"], ["--loop.averaging", "null"])]  # fmt: skip
    assert len(set(kept)) == 4
    assert kept[3] == "100"
    code, _, said = run(capsys, *table, "--loop.batch_size", "3")
    assert code == 2
    assert "--loop.batch_size does not go with --clients, whose table gives T, q and w" in said
    code, _, said = run(capsys, *table, "--loop.rounds", "0")
    assert (code, "loop.rounds=0 must be at least 1" in said) == (2, True)


def test_many_clients(in_folder, capsys):
    rng = np.random.default_rng(0)
    rows = zip(rng.integers(1, 30, 3000), rng.uniform(0, 0.5, 3000), strict=True)
    (in_folder / "c.csv").write_text("T,q\n" + "".join(f"{steps},{rate}\n" for steps, rate in rows))
    code, out, _ = run(
        capsys, "--clients", "c.csv", "--algorithms", "fedavg,workaware,divfl", "--clients_per_round", "50"
    )
    assert code == 0
    assert "Recommended: workaware" in out


BAD = {
    "weight,T,q\n1,5,nan\n": "line 2: failure_rate=nan must be in [0, 1)",
    "T,q\n5,0.1\n5,1\n": "line 3: failure_rate=1 must be in [0, 1)",
    "T,q\n0,0.1\n": "line 2: num_steps=0 must be a whole number from 1 to 1,000,000",
    "T,q\n1.5,0.1\n": "line 2: num_steps=1.5 must be a whole number",
    "T,q\ninf,0.1\n": "line 2: num_steps=inf must be a whole number",
    "w,q\n1,0.1\n": "has no column num_steps (got w, q)",
    "": "is empty",
    "T,q\n": "is empty",
    "T,q\n3\n": "line 2: failure_rate must be a number, got ''",
    "T,q\nmany,0.1\n": "num_steps must be a number, got 'many'",
    "w,T,q\n0,3,0.1\n": "at least one weight must be above 0",
    "w,T,q\n-1,3,0.1\n": "weight=-1 must be a finite number >= 0",
    "q,failure_rate,T\n0,0,1\n": "has 2 columns for failure_rate",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_tables_are_one_clear_line(in_folder, capsys, text):
    (in_folder / "c.csv").write_text(text)
    code, _, error = run(capsys, "--clients", "c.csv")
    assert code == 2
    assert BAD[text] in error
    assert error.count("\n") == 1


def test_other_mistakes_are_one_clear_line(in_folder, capsys):
    for arguments, wanted in (
        (["--clients", "none.csv"], "none.csv does not exist"),
        (["--config", "mnist.yaml", "--algorithms", "fedfoo"], "'fedfoo' is unknown: use a file, all, or some of"),
        (["--config", "nothing.yaml"], "neither a file nor a shipped config"),
        (["--config", "mnist.yaml", "--algorithms", ","], "--algorithms needs names"),
    ):
        code, _, error = run(capsys, *arguments)
        assert code == 2
        assert wanted in error
        assert error.count("\n") == 1


def test_weights_are_shares_and_optional(tmp_path):
    (tmp_path / "c.csv").write_text("size, local steps ,q\n30,4,0.5\n10,2,0\n\n")
    table = read_clients(tmp_path / "c.csv")
    assert table.weights.tolist() == [0.75, 0.25]
    assert table.num_steps.tolist() == [4, 2]
    (tmp_path / "d.csv").write_text("t,q\n4,0.5\n2,0\n")
    assert read_clients(tmp_path / "d.csv").weights.tolist() == [0.5, 0.5]


def test_an_algorithm_in_the_config_makes_room_for_others():
    merged = {"loop": {"sampling": {"init_args": {"clients_per_round": 4, "sampler": "x"}}, "aggregator": "y"}}
    neutral = without_algorithm(merged)["loop"]
    assert neutral["sampling"]["init_args"]["clients_per_round"] == 4
    assert neutral["aggregator"]["class_path"].endswith("AnonymousMean")
    assert merged["loop"]["aggregator"] == "y"


def test_overrides_are_separated():
    environment, algorithm = split_overrides(["--seed=1", "--loop.solver.momentum", "0.3", "--loop.lr", "0.1"])
    assert environment == ["--seed=1", "--loop.lr", "0.1"]
    assert algorithm == ["--loop.solver.momentum", "0.3"]
