"""Each part stands at the keys whose type it has; the catalogue is made once, and made anew where it cannot be used."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from fl_lightning.callbacks import RayleighOutage
from fl_lightning.cli.main import main
from fl_lightning.config import building, catalogue, compose
from fl_lightning.data import ByColumn
from fl_lightning.engine import Engine
from fl_lightning.parts.bases import DataSource, Partition
from fl_lightning.samplers import Sampler, Systematic, Uniform
from fl_lightning.samplers.sampler import Drawing
from fl_lightning.system import DayNight

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made():
    return catalogue.make_catalogue()


@pytest.fixture
def cache(tmp_path, monkeypatch, made):
    """An empty cache folder; what was made is counted instead of made again."""
    calls = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "make_catalogue", lambda: calls.append(1) or made)
    catalogue.stored.cache_clear()
    yield calls
    catalogue.stored.cache_clear()


def stored_again():
    catalogue.stored.cache_clear()
    return catalogue.stored()


def file():
    (found,) = catalogue._cached_file().parent.iterdir()
    return found


def test_it_is_made_once_and_read_afterwards(cache, made):
    assert catalogue.stored() == made
    assert stored_again() == made
    assert stored_again() is not made
    assert cache == [1]
    assert file() == catalogue._cached_file()


@pytest.mark.skipif(os.name != "posix", reason="Windows has other rights")
def test_nobody_else_can_read_or_write_it(cache):
    catalogue.stored()
    assert stat.S_IMODE(file().stat().st_mode) == 0o600
    assert stat.S_IMODE(file().parent.stat().st_mode) == 0o700


def test_a_change_of_the_package_makes_it_anew(cache, monkeypatch, tmp_path):
    package = tmp_path / "package"
    (package / "samplers").mkdir(parents=True)
    source = package / "samplers" / "mine.py"
    source.write_text("a = 1\n")
    monkeypatch.setattr(catalogue, "_PACKAGE", package)
    catalogue.stored()
    stored_again()
    assert len(cache) == 1
    source.write_text("b = 1\n")
    os.utime(source, (1, 1))
    stored_again()
    assert len(cache) == 2
    (package / "samplers" / "yours.py").touch()
    stored_again()
    stored_again()
    assert len(cache) == 3
    file()  # the old one was replaced


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_linked_folder_belongs_to_the_package(monkeypatch, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "callbacks").mkdir()
    (package / "callbacks").symlink_to(tmp_path / "callbacks", target_is_directory=True)
    monkeypatch.setattr(catalogue, "_PACKAGE", package)
    state = catalogue._state_of_package()
    (tmp_path / "callbacks" / "mine.py").touch()
    assert catalogue._state_of_package() != state


def changed(content, *path, to):
    for step in path[:-1]:
        content = content[step]
    content[path[-1]] = to


FORGED = {
    "a name that is a number": (("keys", 0, "name"), 5),
    "a name with an escape sequence": (("keys", 0, "name"), "\x1b]0;owned\x07"),
    "choices that are a text": (("keys", 0, "choices"), [["a"]]),
    "a flag that is a text": (("keys", 0, "many"), "yes"),
    "arguments that are none": (("keys", 0), None),
    "parts that are a list": (("parts",), []),
    "keys that are a number": (("keys",), 7),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_is_made_anew(name, cache, made):
    catalogue.stored()
    content = json.loads(file().read_text())
    place, value = FORGED[name]
    changed(content["catalogue"], *place, to=value)
    file().write_text(json.dumps(content))
    assert stored_again() == made
    assert len(cache) == 2
    assert stored_again() == made
    assert len(cache) == 2


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b" " * 6_000_000 + b"{}"], ids=len
)
def test_a_damaged_file_is_made_anew(content, cache, made):
    catalogue.stored()
    file().write_bytes(content)
    assert stored_again() == made
    assert len(cache) == 2


def test_a_wrong_catalogue_gives_a_wrong_hint_at_most(cache, capsys):
    catalogue.stored()
    text = file().read_text()
    file().write_text(text.replace('"kind": "sampler"', '"kind": "nothing"').replace("loop.lr", "loop.evil"))
    catalogue.stored.cache_clear()
    assert main(["train", "--loop.sampling.sampler", "Uniform", "--loop.evi", "1"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert main(["show", "sampling"]) == 0
    assert main(["train", "--help"]) == 0
    assert main(["completion", "bash"]) == 0
    assert len(cache) == 1


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_not_read(cache):
    catalogue.stored()
    os.chown(file(), 12345, 12345)
    stored_again()
    assert len(cache) == 2
    assert file().stat().st_uid == os.getuid()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_its_place_does_not_block(cache, made):
    path = catalogue._cached_file()
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert catalogue.stored() == made


def test_without_a_folder_to_write_to_it_is_made_in_memory(cache, made, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert catalogue.stored() == made
    assert catalogue.stored() is made
    assert stored_again() is made
    assert len(cache) == 2


def test_what_cannot_be_completed_leaves_nothing_behind(cache, made, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    assert catalogue.stored() is made
    assert not list(catalogue._cached_file().parent.iterdir())


def test_a_relative_folder_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalogue._cached_file().parent == tmp_path / ".cache" / "fl_lightning"


def test_the_first_command_says_what_it_loads_and_several_may_be_first(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "fl_lightning", "train", "--loop.lrr", "1"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def start():
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    first = start()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    catalogue.stored.__wrapped__()  # at the same time, as another command would
    loading, error = first.communicate()[1].splitlines()
    assert loading == "loading PyTorch and Lightning ..."
    assert "did you mean --loop.lr?" in error
    (found,) = (tmp_path / "fl_lightning").iterdir()
    before = found.stat().st_mtime_ns
    (error,) = start().communicate()[1].splitlines()
    assert "did you mean --loop.lr?" in error
    assert found.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("radio", {"RayleighOutage"}),
        ("availability", {"AvailabilityTrace", "DayNight", "OnOff", "Phones"}),
        ("seconds_per_step", {"Between", "LogNormal", "Share"}),
        ("sampling", {"AsynchronousSelection", "SamplerSelection"}),
    ],
)
def test_the_parts_of_a_kind(kind, names):
    assert {part.name for part in catalogue.stored().of_kind(kind)} == names


def test_neither_a_base_nor_a_narrower_kind_is_listed():
    known = catalogue.stored()
    assert known.part("fl_lightning.samplers.Sampler").kinds == ()
    assert known.part("fl_lightning.module.FederatedModule").kinds == ("model",)


@pytest.mark.parametrize(
    ("part", "base", "fits"),
    [
        (Uniform, Sampler, True),
        (Systematic, Drawing, True),  # by its method
        (Uniform, Drawing, False),
        (ByColumn, Partition, True),
        (Engine, DataSource, False),  # which loads something else
        (DayNight, RayleighOutage, False),  # which has the same methods by chance
    ],
)
def test_what_fits(part, base, fits):
    assert catalogue._fits(part, base) is fits


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "int | None"),
        (Literal["a", 2] | float, "a | 2 | float"),
        (Literal["a"] | Literal["a", "b"], "a | b"),
        (dict[str, tuple[int, ...]], "dict[str, tuple[int, ...]]"),
    ],
)
def test_types_in_words(hint, words):
    assert catalogue._in_words(hint) == words


def test_a_choice_that_two_types_have_is_one():
    (precision,) = (key for key in catalogue.stored().keys if key.name == "fabric.precision")
    assert len(set(precision.choices)) == len(precision.choices) > 5


def test_a_parser_that_has_parsed_has_no_other_keys():
    building.parse(compose.compose(["toy_fedavg.yaml"]), [])
    assert "print_shtab" not in {key.name for key in catalogue.make_catalogue().keys}
