"""Run folders under attack: two processes at once, disks that come and go, and folders of other people.

``pytest -m slow tests/test_chaos_folders.py`` makes 20 pairs of processes, 20 missing disks and 100 foreign folders.
"""

import os
import random
import shutil

import pytest
from chaos import ROUNDS, Server
from fuzzing import amounts, fuzz, tried
from hypothesis import strategies as st

from fl_lightning.runs.locking import NAME as LOCK
from fl_lightning.runs.storage import checkpoints, read_checkpoint
from stored_runs import arguments, content_of

NAME = "toy_fedacs"
OUR_NAMES = ("metrics.csv", "config.yaml", "summary.json", "model.ckpt", "clients.csv", ".fl_lightning.json")
OUR_FOLDERS = ("checkpoints", "wandb", "tensorboard")
times = pytest.mark.parametrize("amount", [1, pytest.param(20, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def servers():
    servers = Server(), Server()
    yield servers
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def expected(servers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("left_alone")
    assert servers[0].order(NAME, folder) == 0
    return content_of(folder)


def everything(folder):
    """Return all files but the lock, which a killed process leaves and the next one takes away."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@times
def test_two_processes_in_one_folder(amount, servers, expected, tmp_path):
    """One trains, the other is refused; also when the one that trains is killed in between."""
    rng = random.Random(0)
    for number in range(amount):
        folder = tmp_path / str(number)
        kills = [rng.choice([None, rng.randrange(ROUNDS - 5)]), None]
        for server, rounds in zip(servers, kills, strict=True):
            server.send(NAME, folder, rounds)
        codes = [server.receive() for server in servers]
        assert set(codes) <= {0, 2, -9}, codes
        for _, path in checkpoints(folder / "checkpoints"):
            read_checkpoint(path)
        assert servers[0].order(NAME, folder) == 0
        assert content_of(folder) == expected


@times
def test_a_disk_that_is_away_for_a_while(amount, servers, expected, tmp_path):
    rng = random.Random(0)
    for number in range(amount):
        folder, disk = tmp_path / str(number), tmp_path / f"disk{number}"
        assert servers[0].order(NAME, folder, rng.randrange(2, ROUNDS - 5)) == -9
        (folder / "checkpoints").rename(disk)
        away = rng.choice(["empty", "dangling", "deleted"])
        if away == "empty":
            (folder / "checkpoints").mkdir()
        elif away == "dangling":
            (folder / "checkpoints").symlink_to(tmp_path / "nowhere")
        before = everything(folder)
        assert servers[0].order(NAME, folder) == 2
        assert everything(folder) == before
        if os.path.lexists(folder / "checkpoints"):
            (folder / "checkpoints").unlink() if away == "dangling" else (folder / "checkpoints").rmdir()
        (folder / "checkpoints").symlink_to(disk)
        assert servers[0].order(NAME, folder) == 0
        assert content_of(folder) == expected


foreign = st.dictionaries(
    st.one_of(
        st.sampled_from(OUR_NAMES), st.builds("{}/{}".format, st.sampled_from(OUR_FOLDERS), st.sampled_from("abc"))
    ),
    st.one_of(st.binary(max_size=30), st.sampled_from([b"{}", b"[]", b"a: 1\n", b"!mine {}", b"round\n1\n", b"null"])),
    min_size=1,
    max_size=4,
)


@amounts(10)
def test_folders_of_other_people_stay_as_they_are(amount, tmp_path):
    folder = tmp_path / "theirs"

    def check(files, resume):
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        before = everything(folder)
        assert tried(["train", *arguments(NAME, folder, 1), "--resume", resume]) == 2
        assert everything(folder) == before

    fuzz(st.tuples(foreign, st.sampled_from(["auto", "never"])), amount, lambda given: check(*given))
