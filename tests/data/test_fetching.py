import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fl_lightning.data.archives import NpmFile, unpack
from fl_lightning.data.fetching import (
    FetchError,
    download,
    first_working,
    read_checked,
    workspace,
)

CONTENT = bytes(range(256)) * 9000  # more than two chunks
MD5 = hashlib.md5(CONTENT).hexdigest()
PACKAGE = NpmFile(project="some", version="1.0.0", name="some-1.0.0.tgz", num_bytes=100, digest="")


class CuttingHandler(SimpleHTTPRequestHandler):
    def copyfile(self, source, outputfile):
        data = source.read()
        outputfile.write(data[: len(data) // 2] if "cut" in self.path else data)

    def log_message(self, *args):
        pass


@pytest.fixture
def address(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "whole.bin").write_bytes(CONTENT)
    (folder / "cut.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(CuttingHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def fake_npm(folder, script):
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


def test_download_whole(address, tmp_path):
    download(address + "whole.bin", tmp_path / "got", MD5)
    assert (tmp_path / "got").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["cut.bin", "absent.bin"])
def test_half_a_download_is_an_error(address, tmp_path, name):
    with pytest.raises(FetchError, match="download failed"):
        download(address + name, tmp_path / "got", MD5)


def test_download_with_a_wrong_checksum_is_an_error(address, tmp_path):
    with pytest.raises(FetchError, match="wrong checksum"):
        download(address + "whole.bin", tmp_path / "got", "0" * 32)


def test_verify_names_file_got_and_wanted(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert read_checked(path, MD5) == CONTENT
    with pytest.raises(ValueError, match="is damaged"):
        read_checked(path, MD5, most=len(CONTENT) - 2)
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(ValueError, match=rf"file is damaged.*wanted {MD5}.*delete it"):
        read_checked(path, MD5)
    with pytest.raises(FileNotFoundError):
        read_checked(tmp_path / "none", MD5)


def add_link(tar, name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    tar.addfile(info)


def add_file(tar, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def make_hostile_tar(path, victim):
    """Write to a file elsewhere in four ways, one of them past tarfile's own filter (CVE-2025-4517)."""
    with tarfile.open(path, "w:gz") as tar:
        add_file(tar, "../evil", b"evil")
        add_link(tar, "package/data", str(victim.parent))
        add_file(tar, f"package/data/{victim.name}", b"evil")
        long, inner, steps = "d" * 247, "", "abcdefghijklmnop"
        for step in steps:  # until the resolved path is longer than what realpath resolves
            folder = tarfile.TarInfo(os.path.join(inner, long))
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            add_link(tar, os.path.join(inner, step), long)
            inner = os.path.join(inner, long)
        deep = os.path.join("/".join(steps), "l" * 254)
        add_link(tar, deep, "../" * len(steps))
        add_link(tar, "escape", f"{deep}/../{victim.parent.name}")
        add_link(tar, "hard", f"escape/{victim.name}", tarfile.LNKTYPE)
        add_file(tar, "hard", b"evil")


def test_hostile_archive_writes_nothing(tmp_path):
    victim = tmp_path / "home" / ".bashrc"
    inner = tmp_path / "inner"
    for folder in (victim.parent, inner):
        folder.mkdir()
    victim.write_text("mine")
    make_hostile_tar(tmp_path / "a.tgz", victim)
    before = sorted(tmp_path.rglob("*"))
    for name in ("hard", "escape", "package/data", "package/data/.bashrc", "../evil"):
        with pytest.raises(ValueError, match="as a plain file"):  # even if its checksum were the right one
            unpack((tmp_path / "a.tgz").read_bytes(), ["absent", name], "a.tgz", inner)
    assert sorted(tmp_path.rglob("*")) == before
    assert victim.read_text() == "mine"


def test_cut_archive_is_refused(tmp_path):
    make_tar(tmp_path / "a.tgz", {"file": os.urandom(50_000)})
    data = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack((tmp_path / "a.tgz").read_bytes(), ["file"], "a.tgz", tmp_path / "inner")


def test_lock_that_is_a_link_is_refused_and_what_it_points_to_is_kept(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".fetch.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="cannot write to the data folder"), workspace(tmp_path / "root"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.skipif(os.name == "nt", reason="uses a shell script")
def test_npm_pack_returns_the_packed_file(tmp_path, monkeypatch):
    make_tar(tmp_path / "some-1.0.0.tgz", {"package/file": b"content"})
    script = f'[ "$1 $2" = "pack some@1.0.0" ] && cp {tmp_path}/some-1.0.0.tgz .'
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "bin", script))
    (tmp_path / "work").mkdir()
    packed = tmp_path / "work" / PACKAGE.name
    PACKAGE.fetch(packed)
    unpack(packed.read_bytes(), ["package/file"], "it", tmp_path / "work")
    assert (tmp_path / "work" / "package" / "file").read_bytes() == b"content"
    packed.unlink()
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "other", "exit 0"))
    with pytest.raises(FetchError, match=r"npm pack some@1.0.0 made no file"):
        PACKAGE.fetch(packed)


@pytest.mark.skipif(os.name == "nt", reason="uses a shell script")
def test_npm_that_fails_or_is_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "bin", "exit 3"))
    with pytest.raises(FetchError, match=r"some@1.0.0 failed \(exit code 3\)"):
        PACKAGE.fetch(tmp_path / PACKAGE.name)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="npm is not installed"):
        PACKAGE.fetch(tmp_path / PACKAGE.name)


def test_first_working_way_wins_and_all_reasons_are_told(tmp_path):
    def fail():
        raise FetchError("no cable")

    def wrong():
        raise ValueError("odd bytes")

    assert first_working("X", tmp_path, (fail, wrong, lambda: 7), "Do this") == 7
    with pytest.raises(FileNotFoundError, match=r"X is not in .*: no cable; .*odd bytes.* Do this"):
        first_working("X", tmp_path, (fail, wrong), "Do this")


def test_workspace_is_removed_also_after_an_error(tmp_path):
    def fail():
        with workspace(tmp_path / "root") as folder:
            (folder / "half").write_bytes(b"1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".fetch.lock"]


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL and file locks")
def test_killed_process_leaves_nothing_that_is_taken_for_data(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from fl_lightning.data.fetching import workspace\n"
        f"with workspace(Path({str(tmp_path)!r})) as folder:\n"
        "    (folder / 'half').write_bytes(b'1'); print('ready', flush=True); time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.glob(".fetch-*/half"))) == 1
    with workspace(tmp_path) as folder:  # the lock of the dead is free, and its leftovers are gone
        assert list(tmp_path.glob(".fetch-*")) == [folder]


def test_root_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write to the data folder"), workspace(tmp_path / "file" / "root"):
        pass
