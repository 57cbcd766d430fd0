"""The README's Python code runs as it stands, and gives the accuracy that is printed beside it."""

import re

import pytest

from documented import ROOT, blocks

(CODE,) = (body for language, body in blocks(ROOT / "README.md") if language == "python")


def printed(capsys, algorithm: str = "limitedfedacs", seed: int = 0) -> float:
    """Run the README's code, with another algorithm and seed, and return what it prints."""
    code = CODE.replace(
        'loop = FederatedLoop(algorithm("limitedfedacs")', f'loop = FederatedLoop(algorithm("{algorithm}")'
    )
    code = code.replace("seed_everything(0)", f"seed_everything({seed})").replace("seed=0", f"seed={seed}")
    exec(compile(code, "README.md", "exec"), {})
    return float(capsys.readouterr().out.split()[-1])


def test_the_accuracies_beside_the_code_are_those_it_prints(capsys):
    ours, fedavg = map(float, re.findall(r"# (\S+); with algorithm\(\"fedavg\"\) (\S+)", CODE)[0])
    assert printed(capsys) == pytest.approx(ours, abs=0.02)  # other processors round differently
    assert printed(capsys, "fedavg") == pytest.approx(fedavg, abs=0.02)


@pytest.mark.slow
def test_the_ranges_over_seeds_are_those_of_the_text(capsys):
    text = (ROOT / "README.md").read_text()
    ranges = re.search(r"Over seeds 0 to 2 the averaged model reaches (\S+) to (\S+), and (\S+) to (\S+) with", text)
    low, high, least, most = map(float, ranges.groups())
    ours = [printed(capsys, seed=seed) for seed in range(3)]
    fedavg = [printed(capsys, "fedavg", seed) for seed in range(3)]
    assert (min(ours), max(ours)) == pytest.approx((low, high), abs=0.02)
    assert (min(fedavg), max(fedavg)) == pytest.approx((least, most), abs=0.02)
