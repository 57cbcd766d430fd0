"""What all commands share that make parts of a configuration: the loop's arguments, parsing, and its complaints."""

import contextlib
import inspect
import io
import itertools
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from inspect import signature
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from fl_lightning.aggregators import Aggregator
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.config.allow_list import check_classes, class_paths, explained, limit_imports
from fl_lightning.config.compose import ConfigError
from fl_lightning.config.errors import in_plain_words
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts.bases import Channel, DataSource, Partition, Sampling, Schedule, misfit
from fl_lightning.runs.identity import flat
from fl_lightning.samplers import Sampler
from fl_lightning.solvers import Solver
from fl_lightning.system.number_files import KINDS

_VALUES = (FederatedLoop, Algorithm, System)
_BASES: tuple[type, ...] = (Schedule, Sampling, Channel, DataSource, Partition, Sampler, Aggregator, Solver)
_LONGEST_LIST = 1000
_TABLES = ("checkpoint", "fabric", "loop")
_REFUSED = re.compile(r"Import path (?:([\w.]+) )?does not correspond to a subclass of (\w+)")
_PATH = re.compile(r"\w+(?:\.\w+)+")
_ABSTRACT = re.compile(r"instantiatable class, but ([\w.]+) is abstract")


@cache
def keys_of(value: type) -> tuple[str, ...]:
    """Return the keys below ``loop`` that stand for the arguments of a value."""
    return tuple(name for name in signature(value).parameters if name not in ("algorithm", "system"))


def loop_keys() -> tuple[str, ...]:
    """Return all keys below ``loop``: those of the algorithm, of the system and of the loop itself."""
    return tuple(key for value in _VALUES for key in keys_of(value))


def add_loop_arguments(parser: ArgumentParser, keys: Collection[str]) -> None:
    """Add some of the keys below ``loop``.

    Those of which every run has one are required, because complaints about them are clearer then.
    """
    required: dict[str, tuple[type, str]] = {
        "schedule": (Schedule, "Decides T and q of every client."),
        "sampling": (Sampling, "Decides who is drawn."),
        "channel": (Channel, "Decides whose upload arrives."),
    }
    for value in _VALUES:
        skip = {name for name in signature(value).parameters if name not in keys or name in required}
        parser.add_class_arguments(value, "loop", as_group=value is FederatedLoop, skip=skip, instantiate=False)
    for key, (base, text) in required.items():
        if key in keys:
            parser.add_argument(f"--loop.{key}", type=base, required=True, help=text)


def split_loop(made: Namespace) -> tuple[Algorithm, System, dict[str, Any]]:
    """Return the algorithm and the system of an instantiated ``loop``, and the arguments of the loop itself."""
    given = vars(made)
    of_algorithm, of_system = (
        {key: given[key] for key in keys_of(value) if key in given} for value in (Algorithm, System)
    )
    rest = {key: value for key, value in given.items() if key not in of_algorithm and key not in of_system}
    return Algorithm(**of_algorithm), System(**of_system), rest


def parse_config(
    parser: ArgumentParser, config: dict[str, Any], overrides: Sequence[str], trusted: Sequence[str] = ()
) -> Namespace:
    """Check a config and overrides against the signatures; one clear line for what does not fit.

    Args:
        parser: With a ``--config`` option.
        config: Merged.
        overrides: Arguments of the command line.
        trusted: Packages whose classes may be named besides the known ones, see :mod:`fl_lightning.config.allow_list`.
    """
    _refuse_long_lists(config, overrides)
    limit_imports(trusted, [config, *overrides])
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            settings: Namespace = parser.parse_args(["--config", yaml.safe_dump(config), *overrides])
    except (ArgumentError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(_one_line(str(error))) from None
    except SystemExit as ending:
        if not ending.code:
            raise  # the help of a class was shown
        raise ConfigError(_one_line(complaints.getvalue())) from None
    _check_tables(settings)
    check_classes(settings, trusted)
    for path in class_paths(settings.as_dict()):
        for complaint in _misfits(path):
            raise ConfigError(complaint)
    return settings


def _check_tables(settings: Namespace) -> None:
    """Refuse a plain value in place of a table of keys, and numbers that no machine word holds."""
    for key in _TABLES:
        if key in settings and not isinstance(settings[key], Namespace):
            raise ConfigError(f"{key}={settings[key]!r} must be a table of keys, such as --{key}.KEY VALUE")
    for key, value in flat(settings.as_dict()).items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{key}={value} is out of range: at most 2^63 - 1 = {2**63 - 1}")


def _refuse_long_lists(config: dict[str, Any], overrides: Sequence[str]) -> None:
    """Refuse lists that would take the parser minutes: it looks at each value many times."""
    found = [(key, len(value)) for key, value in flat(config).items() if isinstance(value, list)]
    found += [(text.partition("=")[0][:40], text.count(",") + 1) for text in overrides]
    for key, length in found:
        if length > _LONGEST_LIST:
            raise ConfigError(
                f"{key} has {length:,} values, but lists of over {_LONGEST_LIST:,} come from a file: give its name "
                f"instead ({', '.join(KINDS)}; traces and partitions have files of their own)"
            )


def _one_line(complaint: str) -> str:
    line = in_plain_words(_explained(explained(complaint)))
    return line if len(line) <= 600 else line[:600] + " ..."


def _misfits(path: str) -> Iterator[str]:
    """Yield what is wrong with a subclass of one of the bases."""
    part = _imported(path)
    for base in _BASES:
        problem = misfit(part, base) if inspect.isclass(part) and issubclass(part, base) else None
        if problem is not None:
            yield f"{path} does not fit {base.__module__}.{base.__name__}: {problem}"


def _explained(complaint: str) -> str:
    """Return a complaint of the parser, or in place of "not a subclass" the method that differs."""
    abstract, refused = _ABSTRACT.search(complaint), _REFUSED.search(complaint)
    if abstract is not None:
        return next(_misfits(abstract[1]), complaint)
    if refused is None:
        return complaint
    bases = [base for base in _BASES if base.__name__ == refused[2]]
    # Of an argument that may be left out, the path stands at the end of the complaint.
    paths = [refused[1]] if refused[1] else _PATH.findall(complaint.partition("Given value:")[2])
    for base, path in itertools.product(bases, paths):
        part = _imported(path)
        problem = misfit(part, base) if part is not None else None
        if problem is not None:
            return f"{path} does not fit {base.__module__}.{base.__name__}: {problem}"
    return complaint


def _imported(path: str) -> Any:
    """Return what a dotted path names if its module is imported already; a complaint must not import anything."""
    module, _, name = path.rpartition(".")
    return vars(sys.modules[module]).get(name) if module in sys.modules else None
