"""The folder of a run that is given none: made of the config's name and of what differs from it. Imports nothing heavy.

It is a function of the command line alone. So the same command resumes its own run, another one does not meet it, and
the trials of a sweep can run at the same time.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fl_lightning.runs.identity import flat, is_free

_LONGEST = 80
_MISSING = object()


def run_folder(name: str, changed: Mapping[str, Any], seed: int) -> str:
    """Return ``runs/<config>/seed_<seed>``, with what differs in between.

    >>> run_folder("digits_fedacs", {}, 0), run_folder("digits_fedacs", {"loop.lr": 0.02}, 0)
    ('runs/digits_fedacs/seed_0', 'runs/digits_fedacs/lr=0.02/seed_0')
    """
    words = in_words(changed)
    return f"runs/{name}/{words}/seed_{seed}" if words else f"runs/{name}/seed_{seed}"


def changed_settings(
    merged: Mapping[str, Any], complete: Mapping[str, Any], settings: Sequence[tuple[str, str | None]]
) -> dict[str, Any]:
    """Return the settings of the command line that give a run another result than its configs would, by dotted keys.

    Args:
        merged: The configs.
        complete: The configuration with all settings, as the parser made it.
        settings: Key and text of each setting on the command line.

    >>> tree = {"loop": {"lr": 0.1, "rounds": 9}}
    >>> changed_settings(tree, {"loop": {"lr": 0.2, "rounds": 9}}, [("loop.lr", "2e-1"), ("loop.rounds", "9")])
    {'loop.lr': 0.2}
    """
    old, new = flat(merged), flat(complete)
    changed: dict[str, Any] = {}
    for given, text in settings:
        key = given.removesuffix("+").replace(".init_args", "")
        if is_free(key) or key == "seed":
            continue
        inner = [path for path in new if path.startswith(f"{key}.")]
        if not (text or "").lstrip().startswith("{"):  # of a class, the name alone was given
            inner = [path for path in inner if path == f"{key}.class_path"]
        paths = [path for path in (key, *inner) if path in new and new[path] != old.get(path, _MISSING)]
        changed |= {path: new[path] for path in paths}
    return changed


def in_words(changed: Mapping[str, Any]) -> str:
    """Return settings as a part of a path; a long one is cut and told apart by a hash.

    >>> in_words({"loop.lr": 0.02, "loop.sampling.sampler.class_path": "fl_lightning.samplers.Uniform"})
    'lr=0.02,sampling.sampler=Uniform'
    """
    words = []
    for key, value in sorted(changed.items()):
        is_class = key.endswith(".class_path")
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
        name = key.removesuffix(".class_path").removeprefix("loop.")
        words.append(f"{name}={text.rpartition('.')[2] if is_class else text}")
    whole = ",".join(words)
    clean = re.sub(r"[^\w.,=+-]", "_", whole)
    if clean == whole and len(whole) <= _LONGEST:
        return whole
    digest = hashlib.sha256(json.dumps(dict(changed), sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{clean[: _LONGEST - 20]}-{digest}"
