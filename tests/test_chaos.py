"""Runs that are killed at random moments, again and again, end as runs that were left alone.

``pytest -m slow tests/test_chaos.py`` kills the runs of each algorithm eight times, over 200 times in all.
"""

import random

import pytest
from chaos import ROUNDS, Server
from every_algorithm import FIXED_NOISE

from fl_lightning.config import compose as configs
from fl_lightning.runs.storage import checkpoints, read_checkpoint
from stored_runs import content_of


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


def survive(server, name, folder, num_kills, more=()):
    """Kill a run again and again, a little further each time, and compare it with one that was left alone."""
    assert server.order(name, folder / "a", more=more) == 0
    rng = random.Random(name)
    struck = 0
    for rounds in sorted(rng.randrange(ROUNDS) for _ in range(num_kills)):
        # At least one round beyond what the checkpoint holds, else the kill would strike before anything happens.
        due = max(rounds, finished_rounds(folder / "b") + 1)
        code = server.order(name, folder / "b", due, rng.uniform(0, 0.03), more=more)
        assert code in (0, -9), code
        struck += code == -9
        for _, path in checkpoints(folder / "b" / "checkpoints"):
            read_checkpoint(path)  # never unreadable
    assert server.order(name, folder / "b", more=more) == 0
    assert content_of(folder / "b") == content_of(folder / "a")
    assert struck >= num_kills // 4  # a late one may find the run finished
    return struck


def finished_rounds(run_dir):
    return max((number for number, _ in checkpoints(run_dir / "checkpoints")), default=0)


@pytest.mark.parametrize("name", ["digits_fedvarp", pytest.param("toy_fedacs", marks=pytest.mark.slow)])
def test_a_few_kills(name, server, tmp_path):
    survive(server, name, tmp_path, 2)


STOPPED = ["--loop.callbacks+=fl_lightning.callbacks.StopAtTarget", "--loop.callbacks.target=0.2"]
CASES = [(f"digits_{name}", FIXED_NOISE.get(name, [])) for name in configs.names("algorithms")]
CASES += [(f"digits_{name}", [*FIXED_NOISE.get(name, []), *STOPPED]) for name in ("fedacs", "scaffold", "dpfedacs")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), CASES)
def test_many_kills(name, more, server, tmp_path, capsys):
    struck = survive(server, name, tmp_path, 8, more)
    with capsys.disabled():
        print(f"\n{name} {' '.join(more)}: killed {struck} times, no difference")
