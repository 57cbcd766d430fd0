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

from fl_lightning.data.fetching import (
    FetchError,
    NpmPackage,
    download,
    first_working,
    npm_pack,
    unpack,
    verify,
    workspace,
)

CONTENT = bytes(range(256)) * 9000  # more than two chunks
MD5 = hashlib.md5(CONTENT).hexdigest()


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
    verify(path, "md5", MD5)
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(ValueError, match=rf"file is damaged.*wanted {MD5}.*delete it"):
        verify(path, "md5", MD5)
    with pytest.raises(ValueError, match="missing"):
        verify(tmp_path / "none", "md5", MD5)


@pytest.mark.parametrize("name", ["../evil", "package/../../evil"])
def test_archive_that_writes_outside_is_refused(tmp_path, name):
    make_tar(tmp_path / "a.tgz", {name: b"x"})
    (tmp_path / "inner").mkdir()
    with pytest.raises(ValueError, match="outside"):
        unpack(tmp_path / "a.tgz", tmp_path / "inner")
    assert not (tmp_path / "evil").exists()


def test_archive_with_a_link_outside_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "../../secret"
        tar.addfile(info)
    with pytest.raises(ValueError, match="outside"):
        unpack(tmp_path / "a.tgz", tmp_path / "inner")


def test_cut_archive_is_refused(tmp_path):
    make_tar(tmp_path / "a.tgz", {"file": os.urandom(50_000)})
    data = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(tmp_path / "a.tgz", tmp_path / "inner")


@pytest.mark.skipif(os.name == "nt", reason="uses a shell script")
def test_npm_pack_returns_the_packed_file(tmp_path, monkeypatch):
    make_tar(tmp_path / "some-1.0.0.tgz", {"package/file": b"content"})
    script = f'[ "$1 $2" = "pack some@1.0.0" ] && cp {tmp_path}/some-1.0.0.tgz .'
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "bin", script))
    (tmp_path / "work").mkdir()
    packed = npm_pack(NpmPackage("some", "1.0.0", 100), tmp_path / "work")
    unpack(packed, tmp_path / "work")
    assert (tmp_path / "work" / "package" / "file").read_bytes() == b"content"


@pytest.mark.skipif(os.name == "nt", reason="uses a shell script")
def test_npm_that_fails_or_is_absent(tmp_path, monkeypatch):
    package = NpmPackage("some", "1.0.0", 100)
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "bin", "exit 3"))
    with pytest.raises(FetchError, match=r"some@1.0.0 failed \(exit code 3\)"):
        npm_pack(package, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="npm is not installed"):
        npm_pack(package, tmp_path)


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
