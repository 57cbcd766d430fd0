"""The algorithms that a command line names. Imports nothing heavy."""

from pathlib import Path

from fl_lightning.config import compose as configs
from fl_lightning.config.nearest import suggestion


def label(name: str) -> str:
    """Return what an algorithm is called: its name, or the stem of its file.

    >>> label("fedavg"), label("algorithms/mine.yaml")
    ('fedavg', 'mine')
    """
    return name if name in configs.names("algorithms") else Path(name).stem


def names_given(text: str) -> list[str]:
    """Return the algorithms that a comma-separated list of names and files, or ``all``, stands for; FedAvg first.

    >>> names_given("fedacs, fedavg")
    ['fedavg', 'fedacs']
    """
    known = configs.names("algorithms")
    names = known if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise configs.ConfigError("--algorithms needs names or files, separated by commas, or all")
    names = sorted(dict.fromkeys(names), key=lambda name: name != "fedavg")
    for name in names:
        if name not in known and not Path(name).is_file():
            hint = suggestion(name, known)
            raise configs.ConfigError(
                f"algorithm {name!r} is unknown{hint}: use a file, all, or some of {', '.join(known)}"
            )
    labels = [label(name) for name in names]
    twice = sorted({each for each in labels if labels.count(each) > 1})
    if twice:
        raise configs.ConfigError(f"--algorithms has {', '.join(twice)} more than once: rename the file")
    return names
