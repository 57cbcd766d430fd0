"""Clients that are files in a folder, and tensors that stay on disk."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.cli.main import main
from fl_lightning.data import ClientFiles, TensorFederation, mapped
from systems import gaussian_federation, linear_module, small_loop

WHOLE = gaussian_federation(6)


def data_of(client):
    return WHOLE.batch(client, np.arange(WHOLE.sizes[client]))


def write(path, examples):
    x, y = examples
    if path.suffix == ".pt":
        torch.save((x, y), path)
    elif path.suffix == ".npz":
        np.savez(path, x=x.numpy(), y=y.numpy())
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"x": list(x.numpy()), "y": y.numpy()}), path)


@pytest.fixture(params=["pt", "npz", "parquet"])
def folder(request, tmp_path):
    for client in range(6):
        write(tmp_path / f"client_{10 * client:06d}.{request.param}", data_of(client))
    write(tmp_path / f"test.{request.param}", WHOLE.test)
    (tmp_path / "notes.txt").write_text("not a client")
    return tmp_path


def test_training_on_files_is_training_on_tensors(folder):
    expected = small_loop().run(linear_module(), WHOLE)
    found = small_loop().run(linear_module(), ClientFiles(str(folder)))
    assert torch.equal(found.weights, expected.weights)
    federation = ClientFiles(str(folder)).load(0)
    assert federation.sizes.tolist() == WHOLE.sizes.tolist()
    for client in range(6):
        for mine, theirs in zip(federation.tensors(client), data_of(client), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype


def test_columns_and_sizes_can_be_named(folder, tmp_path):
    if next(folder.glob("client_*")).suffix == ".pt":
        torch.save({"x": data_of(0)[0], "y": data_of(0)[1], "z": torch.zeros(12)}, folder / "client_000000.pt")
        assert len(ClientFiles(str(folder), ["y", "x"]).read(folder / "client_000000.pt")) == 2
        with pytest.raises(ValueError, match="has no 'u': columns= goes with a dict"):
            ClientFiles(str(folder), ["u"]).read(folder / "client_000000.pt")
        return
    np.save(tmp_path / "sizes.npy", WHOLE.sizes)
    (test := next(folder.glob("test.*"))).unlink()
    federation = ClientFiles(str(folder), ["y", "x"], str(tmp_path / "sizes.npy")).load(0)
    assert federation.test is None, test
    labels, inputs = federation.tensors(2)
    assert torch.equal(inputs, data_of(2)[0])
    assert torch.equal(labels, data_of(2)[1])
    np.save(tmp_path / "sizes.npy", WHOLE.sizes[:-1])
    with pytest.raises(ValueError, match="must hold 6 whole numbers"):
        ClientFiles(str(folder), (), str(tmp_path / "sizes.npy")).load(0)


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ClientFiles(str(tmp_path / "nowhere")).load(0)
    with pytest.raises(FileNotFoundError, match="has no client's file"):
        ClientFiles(str(tmp_path)).load(0)
    (tmp_path / "client_1.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"client_1\.npz cannot be read"):
        ClientFiles(str(tmp_path)).load(0)
    (tmp_path / "client_1.npz").unlink()
    (tmp_path / "client_1.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"client_1\.pt holds no tensors, or is damaged"):
        ClientFiles(str(tmp_path)).load(0)
    write(tmp_path / "client_01.pt", data_of(0))
    with pytest.raises(ValueError, match="two files of one client"):
        ClientFiles(str(tmp_path)).load(0)


def test_no_file_can_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    torch.save(Evil(), tmp_path / "client_0.pt")
    with pytest.raises(ValueError, match="holds no tensors"):
        ClientFiles(str(tmp_path)).load(0)
    np.savez(tmp_path / "client_0.npz", x=np.array([Evil()], dtype=object))
    with pytest.raises(ValueError, match="cannot be read"):
        ClientFiles(str(tmp_path)).read(tmp_path / "client_0.npz")


def test_a_config_can_name_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clients").mkdir()
    rng = np.random.default_rng(0)
    for name in [*(f"client_{client:02d}" for client in range(20)), "test"]:
        np.savez(tmp_path / "clients" / f"{name}.npz", x=rng.random((9, 1, 8, 8), np.float32), y=np.arange(9))
    data = ["--data", "fl_lightning.data.ClientFiles", "--data.folder", "clients"]
    arguments = ["--loop.rounds", "2", "--logger", "none", "--run_dir", "run"]
    assert main(["train", "--config", "digits_fedacs.yaml", *data, *arguments]) == 0
    assert (tmp_path / "run" / "summary.json").is_file()
    assert main(["train", "--config", "digits_fedacs.yaml", *data[:3], "nowhere", *arguments[:4]]) == 2


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
@pytest.mark.parametrize("kind", ["npy", "pt"])
def test_mapped_tensors_are_read_where_they_are_used(tmp_path, kind):
    path, length = tmp_path / f"x.{kind}", 25_000_000  # 100 MB
    if kind == "npy":
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(length // 100, 100)).flush()
    else:
        with (tmp_path / "raw").open("wb") as file:
            file.truncate(4 * length)
        torch.save(torch.from_file(str(tmp_path / "raw"), size=length).view(-1, 100), path)
    before = resident()
    x = mapped(path)
    federation = TensorFederation((x,), (x[:5],), np.arange(1000).reshape(10, 100))
    assert federation.batch(3, np.array([1, 2]))[0].shape == (2, 100)
    assert resident() - before < 30e6


def test_what_is_no_tensor_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        mapped(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"?")
    with pytest.raises(ValueError, match=r"x\.npy holds no tensors"):
        mapped(tmp_path / "x.npy")
