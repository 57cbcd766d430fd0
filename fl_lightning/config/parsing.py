"""What all commands share that make parts of a configuration: the loop's arguments, parsing, and its complaints."""

import contextlib
import inspect
import io
import itertools
import re
import sys
from abc import ABC
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from fl_lightning.aggregators import Aggregator
from fl_lightning.config.allow_list import check_classes, class_paths, explained, limit_imports
from fl_lightning.config.compose import ConfigError
from fl_lightning.config.errors import in_plain_words
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts import protocols
from fl_lightning.parts.bases import Channel, DataSource, Partition, Schedule, misfit
from fl_lightning.runs.identity import flat
from fl_lightning.samplers import Sampler
from fl_lightning.solvers import Solver
from fl_lightning.system.traces import KINDS

_BASES: tuple[type, ...] = (Schedule, Channel, DataSource, Partition, Sampler, Aggregator, Solver)
_LONGEST_LIST = 1000
_TABLES = ("checkpoint", "fabric", "loop")
_REFUSED = re.compile(r"Import path (?:([\w.]+) )?does not correspond to a subclass of (\w+)")
_PATH = re.compile(r"\w+(?:\.\w+)+")
_ABSTRACT = re.compile(r"instantiatable class, but ([\w.]+) is abstract")


class Sampling(ABC):  # noqa: B024  its methods are those of the protocol
    """Stands in for the protocol of this name, for which there is no base class: what has its methods is one."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """Compare the methods."""
        return misfit(other, protocols.Sampling) is None


def add_loop_arguments(parser: ArgumentParser, skip: Collection[str]) -> None:
    """Add the arguments of the loop.

    Where the loop asks for a protocol, a class stands in, because of a protocol jsonargparse wants every annotation.
    """
    bases: dict[str, tuple[type, str]] = {
        "schedule": (Schedule, "Decides T and q of every client."),
        "sampling": (Sampling, "Decides who is drawn."),
        "channel": (Channel, "Decides whose upload arrives."),
    }
    parser.add_class_arguments(FederatedLoop, "loop", skip={*skip, *bases}, instantiate=False)
    for key, (base, text) in bases.items():
        if key not in skip:
            parser.add_argument(f"--loop.{key}", type=base, required=True, help=text)


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
    bases = [base for base in (*_BASES, protocols.Sampling) if base.__name__ == refused[2]]
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
