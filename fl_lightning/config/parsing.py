"""From a merged configuration to settings and parts, by jsonargparse: its parsers, and its errors in plain words."""

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonargparse._actions
import jsonargparse._optionals
import jsonargparse._util
import typeshed_client
import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback

from fl_lightning.aggregators import Aggregator
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import RoundCheckpoint
from fl_lightning.config.allow_list import check_classes, explained, limit_imports
from fl_lightning.config.compose import ConfigError, Settings
from fl_lightning.config.loggers import Given
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts.bases import Channel, DataSource, Partition, Sampling, Schedule, misfit
from fl_lightning.runs import safe_yaml
from fl_lightning.runs.identity import flat
from fl_lightning.samplers import Sampler
from fl_lightning.solvers import Solver
from fl_lightning.system.traces import KINDS

_OPTIONS = (  # name, type, default and help of the keys that are of no class
    ("seed", int, 0, "Of every random stream."),
    ("run_dir", str | None, None, "Folder of the run; runs/<config>/seed_<seed> by default."),
    ("target_accuracy", float | None, None, "A value of loop.monitor; the cost to reach it is in the summary."),
    ("validation", float | None, None,
        "Share of the training data to hold out and evaluate on instead of the test data, for tuning."),
    ("logger", Given, ["wandb"], "wandb, tensorboard, none, or a logger of Lightning by its class path; or several."),
    ("start_timeout", float, 300.0, "Seconds to wait for other processes and nodes at the start."),
)  # fmt: skip
_ONE_OF_EACH: dict[str, tuple[type, str]] = {  # they are required, because errors about them are clearer then
    "schedule": (Schedule, "Decides T and q of every client."),
    "sampling": (Sampling, "Decides who is drawn."),
    "channel": (Channel, "Decides whose upload arrives."),
}
_VALUES = (FederatedLoop, Algorithm, System)
_BASES: tuple[type, ...] = (Schedule, Sampling, Channel, DataSource, Partition, Sampler, Aggregator, Solver)
_LONGEST_LIST = 1000
_SEARCH_CONTEXT = typeshed_client.get_search_context
_TABLES = ("checkpoint", "fabric", "loop")
_REFUSED = re.compile(r"Import path (?:([\w.]+) )?does not correspond to a subclass of (\w+)")
_PATH = re.compile(r"\w+(?:\.\w+)+")
_KEYS = re.compile(r'Parser key "([^"]+)"')
_EXPECTED = re.compile(r"Expected an? <class '([\w.]+)'>\. Got value: (.*?)(?= - Expected an? | Given value type: |$)")
_ALTERNATIVES = re.compile(
    r"Subtypes: \[(?P<types>.*?)\] Errors: - (?P<errors>.*?) Given value type: .*?Given value: (?P<value>.*)$"
)
_TYPES = re.compile(r"<class '([\w.]+)'>|([\w.]+\[[^<]*?\])|'([^']+)'")
_ABSTRACT = re.compile(r"instantiatable class, but ([\w.]+) is abstract")


@cache
def keys_of(value: type) -> tuple[str, ...]:
    """Return the keys below ``loop`` that stand for the arguments of a value."""
    return tuple(name for name, each in inspect.signature(value).parameters.items() if each.kind is each.KEYWORD_ONLY)


@cache  # parsing changes nothing in it
def make_parser(keys: tuple[str, ...] | None = None) -> ArgumentParser:
    """Return the parser of a complete configuration, or of some keys, which answers ten times faster.

    Keys are ``seed``, ``data``, ``model`` and so on, and ``loop.KEY`` for those below ``loop``.
    """
    prog = "train.py" if keys is None else "fl-lightning"
    parser = ArgumentParser(prog=prog, exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    for name, kind, default, text in _OPTIONS:
        if keys is None or name in keys:
            parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    if keys is None or "model" in keys:
        parser.add_subclass_arguments(LightningModule, "model", required=True, help="Any LightningModule.")
    if keys is None or "data" in keys:
        parser.add_argument("--data", type=DataSource, required=True, help="The data set and how clients share it.")
    if keys is not None:
        add_loop_arguments(parser, [key.removeprefix("loop.") for key in keys if key.startswith("loop.")])
        return parser
    parser.add_class_arguments(Fabric, "fabric", skip={"callbacks", "loggers", "plugins"}, instantiate=False)
    parser.add_class_arguments(RoundCheckpoint, "checkpoint", skip={"folder", "about"}, instantiate=False)
    of_loop = [key for value in _VALUES for key in keys_of(value) if key not in ("fabric", "seed", "callbacks")]
    add_loop_arguments(parser, of_loop)
    parser.add_argument("--loop.callbacks", type=list[Callback], default=[], help="More callbacks.")
    return parser


def add_loop_arguments(parser: ArgumentParser, keys: Collection[str]) -> None:
    """Add some of the keys below ``loop``."""
    for value in _VALUES if keys else ():
        skip = {name for name in inspect.signature(value).parameters if name not in keys or name in _ONE_OF_EACH}
        parser.add_class_arguments(value, "loop", as_group=value is FederatedLoop, skip=skip, instantiate=False)
    for key, (base, text) in _ONE_OF_EACH.items():
        if key in keys:
            parser.add_argument(f"--loop.{key}", type=base, required=True, help=text)


def instantiate(
    merged: Settings, keys: tuple[str, ...], overrides: Sequence[str] = (), trusted: Sequence[str] = ()
) -> Namespace:
    """Make what stands at some keys of a configuration, see :func:`make_parser`."""
    wanted = {key: merged[key] for key in keys if key in merged}
    of_loop = {key: value for key, value in merged.get("loop", {}).items() if f"loop.{key}" in keys}
    wanted |= {"loop": of_loop} if of_loop else {}
    parser = make_parser(keys)
    settings = parse_config(parser, wanted, overrides, trusted)
    try:
        return objects_of(parser, settings)
    except (ArgumentError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(" ".join(str(error).split())[:600]) from None


def objects_of(parser: ArgumentParser, settings: Namespace) -> Namespace:
    """Make what was parsed; of a part that may be left out, a wrong value is named in the part's own words alone."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parser.instantiate(settings)
    except ValueError as error:
        if "Subtypes: [" not in str(error):
            raise
        raise ValueError(in_plain_words(str(error))) from None


def split_loop(made: Namespace) -> tuple[Algorithm, System, dict[str, Any]]:
    """Return the algorithm and the system of an instantiated ``loop``, and the arguments of the loop itself."""
    rest = dict(vars(made))
    algorithm = Algorithm(**{key: rest.pop(key) for key in keys_of(Algorithm) if key in rest})
    return algorithm, System(**{key: rest.pop(key) for key in keys_of(System) if key in rest}), rest


def parse_config(
    parser: ArgumentParser, config: Settings, overrides: Sequence[str], trusted: Sequence[str] = ()
) -> Namespace:
    """Check a merged config and overrides of the command line; one clear line for what does not fit the signatures.

    What may be named besides the known classes are those of the trusted packages, see
    :mod:`fl_lightning.config.allow_list`.
    """
    _refuse_long_lists(config, overrides)
    _limit_reading()
    for text in safe_yaml.texts([config, *(argument.partition("=")[2] or argument for argument in overrides)]):
        safe_yaml.refuse_aliases(text)
    limit_imports(trusted, [config, *overrides])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            settings: Namespace = parser.parse_args(["--config", yaml.dump(config, Dumper=_WithoutAliases), *overrides])
    except (ArgumentError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(_one_line(str(error))) from None
    except SystemExit as ending:
        if not ending.code:
            raise  # the help of a class was shown
        raise ConfigError(_one_line(said.getvalue())) from None
    _check_tables(settings)
    for path in check_classes(settings, trusted):
        for problem in _misfits(path):
            raise ConfigError(problem)
    return settings


class _WithoutAliases(yaml.SafeDumper):
    """Writes what stands in two places twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _limit_reading() -> None:
    """Let the parser read no files and start no process."""
    typeshed_client.get_search_context = _search_context
    for module in (jsonargparse._util, jsonargparse._actions, jsonargparse._optionals):
        if "_get_config_read_mode" not in vars(module):
            raise ImportError(f"jsonargparse {jsonargparse.__version__} reads files in a new way: install an older one")
        vars(module)["_get_config_read_mode"] = _no_files


def _no_files() -> str:
    """Say that no text is the name of a file with more of the config: the parser then takes it as it is."""
    raise TypeError("a config names no other config")


def _search_context(**settings: Any) -> typeshed_client.SearchContext:
    """Say that stubs are on the path of this process. The parser would start a Python to find it out."""
    return _SEARCH_CONTEXT(**({"search_path": [Path(each) for each in sys.path if each]} | settings))


def _check_tables(settings: Namespace) -> None:
    """Refuse a plain value in place of a table of keys, and numbers that no machine word holds."""
    for key in _TABLES:
        if key in settings and not isinstance(settings[key], Namespace):
            raise ConfigError(f"{key}={settings[key]!r} must be a table of keys, such as --{key}.KEY VALUE")
    for key, value in flat(settings.as_dict()).items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{key}={value} is out of range: at most 2^63 - 1 = {2**63 - 1}")


def _refuse_long_lists(config: Settings, overrides: Sequence[str]) -> None:
    """Refuse lists that would take the parser minutes: it looks at each value many times."""
    found = [(key, _num_values(value)) for key, value in flat(config).items() if isinstance(value, list)]
    found += [(text.partition("=")[0][:40], text.count(",") + 1) for text in overrides]
    for key, length in found:
        if length > _LONGEST_LIST:
            raise ConfigError(
                f"{key} has {length:,} values, but lists of over {_LONGEST_LIST:,} come from a file: give its name "
                f"instead ({', '.join(KINDS)}; traces and partitions have files of their own)"
            )


def _num_values(value: object) -> int:
    """Return how many values a list of lists has in all; the parser's time grows with the square of it."""
    return sum(map(_num_values, value)) if isinstance(value, list) else 1


def _one_line(error: str) -> str:
    line = in_plain_words(_explained(explained(error)))
    return line if len(line) <= 600 else line[:600] + " ..."


def _misfits(path: str, wanted: str = "") -> Iterator[str]:
    """Yield what a part lacks of the base of a name, or of those whose subclass it is."""
    module, _, name = path.rpartition(".")
    part = vars(sys.modules[module]).get(name) if module in sys.modules else None  # an error must not import anything
    for base in _BASES if part is not None else ():
        is_meant = base.__name__ == wanted if wanted else inspect.isclass(part) and issubclass(part, base)
        problem = misfit(part, base) if is_meant else None
        if problem is not None:
            yield f"{path} does not fit {base.__module__}.{base.__name__}: {problem}"


def _explained(error: str) -> str:
    """Return an error of the parser, or in place of "not a subclass" the method that differs."""
    abstract = _ABSTRACT.search(error)
    refused = _REFUSED.search(error)
    if abstract is not None:
        return next(_misfits(abstract[1]), error)
    if refused is None:
        return error
    # Of an argument that may be left out, the path stands at the end of the error.
    paths = [refused[1]] if refused[1] else _PATH.findall(error.partition("Given value:")[2])
    return next((problem for path in paths for problem in _misfits(path, refused[2])), error)


def in_plain_words(error: str) -> str:
    '''Return an error of the parser without the inner workings of types: the key, the value and what is wanted.

    >>> in_plain_words("""Parser key "loop.averaging": Parser key "decay": Expected a <class 'float'>. Got value: x""")
    "loop.averaging.decay='x' does not fit: wanted float"
    >>> in_plain_words("anything else")
    'anything else'
    '''
    text = " ".join(error.split())
    key = ".".join(_KEYS.findall(text))
    expected = _EXPECTED.findall(text)
    if key and expected:
        return _sentence(key, expected[-1][1], [expected[-1][0]])
    start = text.rfind("Subtypes: [")
    found = _ALTERNATIVES.search(text, start) if start >= 0 else None
    if found is None:
        return text
    others = [each for each in found["errors"].split(" - ") if not each.startswith("Expected a")]
    if others:
        return f"{key}: {others[0]}" if key else others[0]
    if not key:
        return text
    return _sentence(key, found["value"], ["".join(names) for names in _TYPES.findall(found["types"])])


def _sentence(key: str, value: str, types: list[str]) -> str:
    words = ["null" if name == "NoneType" else re.sub(r"[a-z_][\w]*\.(?=\w)", "", name) for name in types]
    return f"{key}={value[:80]!r} does not fit: wanted {' or '.join(dict.fromkeys(words))}"
