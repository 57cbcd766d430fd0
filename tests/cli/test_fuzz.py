"""Whatever a stranger gives: it runs, or one line says what is wrong; no traceback, no hang, no foreign code.

``pytest -m slow tests/cli/test_fuzz.py`` makes 10,000 configs and command lines and 2,000 files; CI makes a hundredth.
"""

import copy
from functools import cache

import yaml
from fuzzing import CANARY, amounts, fuzz, tried, world
from hypothesis import strategies as st

from fl_lightning.config import compose as configs

__all__ = ["world"]  # a fixture

numbers = st.sampled_from([-1, 0, 1, 2, 3, 7, 0.5, 1e-300, 1e308, 10**18, -(10**18), 2**63, float("nan"), float("inf")])
words = st.sampled_from(
    ["", "auto", "mean", "none", "null", "true", "1", "size", "uniform", "\x00", "é\n", "a" * 3000, "~", "../.."]
)
paths = st.sampled_from(
    [
        f"{CANARY}.Evil",
        f"{CANARY}.evil",
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "builtins.exec",
        "pickle.load",
        "torch.hub.load",
        "torch.load",
        "torch.jit.load",
        "torch.nn.Linear",
        "torch.optim.SGD",
        "torch.optim.Adam",
        "fl_lightning.loop.os",
        "fl_lightning.cli.main.main",
        "fl_lightning.samplers.Importance",
        "torch.nn.ReLU",
        "fl_lightning.module.FederatedModule.load_from_checkpoint",
        "lightning.pytorch.Trainer",
        "fl_lightning.data.Digits",
        "lightning.pytorch.callbacks.LambdaCallback",
        "torchvision.models.resnet18",
        "fl_lightning.callbacks.ChannelFailures",
        "Uniform",
        "fl_lightning",
        "fl_lightning.",
        ".",
        "a.b",
        "torch.multiprocessing.spawn",
        "torch.ops.load_library",
    ]
)
leaves = st.one_of(numbers, words, st.none(), st.booleans(), paths, st.binary(max_size=4), st.dates())
specs = st.builds(
    lambda path, more: {"class_path": path, "init_args": more}, paths, st.dictionaries(words, leaves, max_size=2)
)
values = st.recursive(
    st.one_of(leaves, specs),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=5,
)


def leaf_paths(tree, path=()):
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        yield from leaf_paths(value, (*path, key))


def replaced(tree, path, value):
    if not path:
        return value
    result = copy.deepcopy(tree)
    spot = result
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return result


@cache
def starting_configs():
    """Return small complete configs; how many processes a run starts is left alone."""
    made = []
    for name in ("digits_fedacs", "toy_fedavg", "toy_fedacs"):
        merged = configs.compose([f"{name}.yaml"])
        merged |= {"logger": "none", "run_dir": "run"}
        del merged["fabric"]
        if name.startswith("digits"):
            merged["data"]["init_args"]["partition"]["init_args"]["num_clients"] = 4
            merged["loop"]["schedule"]["init_args"]["groups"] = [
                {"share": 1.0, "num_steps": [1, 2], "failure_rates": 0.1}
            ]
        made.append(merged)
    return made


@st.composite
def mutated_configs(draw):
    config = draw(st.sampled_from(starting_configs()))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([path for path in leaf_paths(config) if path]))
        config = replaced(config, path, draw(values))
    return config


@st.composite
def mutated_texts(draw):
    text = yaml.safe_dump(draw(st.sampled_from(starting_configs())))
    start = draw(st.integers(0, len(text) - 1))
    end = min(len(text), start + draw(st.integers(0, 30)))
    noise = draw(
        st.one_of(
            st.text(max_size=8), st.sampled_from(["&a [*a]", "*a", "!!python/object:os.system", "{", "- ", "<<: "])
        )
    )
    return text[:start] + noise + text[end:]


KEYS = [
    "seed",
    "run_dir",
    "target_accuracy",
    "logger",
    "model",
    "data",
    "loop",
    "loop.rounds",
    "loop.lr",
    "loop.batch_size",
    "loop.weights",
    "loop.evaluate_every",
    "loop.schedule",
    "loop.schedule.groups",
    "loop.schedule.trace",
    "loop.channel",
    "loop.sampling",
    "loop.sampling.sampler",
    "loop.sampling.clients_per_round",
    "loop.sampling.drawing",
    "loop.solver",
    "loop.solver.optimizer",
    "loop.solver.momentum",
    "loop.aggregator",
    "loop.calibration",
    "loop.calibration.scope",
    "loop.faults",
    "loop.faults.on_bad_update",
    "loop.engine",
    "loop.callbacks",
    "loop.callbacks+",
    "checkpoint.keep",
    "checkpoint.every_n_rounds",
    "model.network",
    "data.partition",
    "data.partition.num_clients",
    "fabric.precision",
    "resume",
    "trust",
    "config",
    "print_config",
    "help",
    "nothing",
    "loop.nothing.at.all",
    "",
]


@st.composite
def command_lines(draw):
    def argument():
        key = draw(st.sampled_from(KEYS))
        value = draw(
            st.one_of(
                st.builds(str, leaves), st.builds(lambda value: yaml.safe_dump(value), values), st.text(max_size=6)
            )
        )
        form = draw(st.integers(0, 3))
        return [[f"--{key}", value], [f"--{key}={value}"], [f"--{key}"], [value]][form]

    base = ["--config", "toy_fedacs.yaml", "--logger=none", "--run_dir=run"]
    return base + [part for _ in range(draw(st.integers(1, 3))) for part in argument()]


def only_known_packages(command):
    """Leave out ``--trust`` of the canary, which is a permission."""
    return not any(CANARY in part and "trust" in "".join(command) for part in command)


@amounts(450)
def test_mutated_configs(amount, world):
    def check(config):
        (world / "mine.yaml").write_text(yaml.safe_dump(config, allow_unicode=True))
        tried(["train", "--config", str(world / "mine.yaml"), "--resume", "never"])

    fuzz(mutated_configs(), amount, check)


@amounts(100)
def test_mutated_config_files(amount, world):
    def check(text):
        (world / "mine.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
        tried(["train", "--config", str(world / "mine.yaml"), "--resume", "never"])

    fuzz(mutated_texts(), amount, check)


@amounts(450)
def test_mutated_command_lines(amount, world):
    def check(command):
        tried(["train", *command, "--resume", "never"])

    fuzz(command_lines().filter(only_known_packages), amount, check)
