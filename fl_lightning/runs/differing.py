"""What differs between the configuration of a stored run and another one."""

import json
from pathlib import Path
from typing import Any

from fl_lightning.runs import safe_yaml
from fl_lightning.runs.folder import stored_config
from fl_lightning.runs.identity import flat, is_free
from fl_lightning.runs.naming import in_words

_MISSING = object()


def differences(there: str, here: str, also_free: tuple[str, ...] = ()) -> list[str]:
    """Return what differs between two configurations, other than what does not change a result."""
    return [
        f"{key} is {_shown(old)} there and {_shown(new)} here"
        for key, (old, new) in _differing(there, here, also_free).items()
    ]


def _differing(there: str, here: str, also_free: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """Return the values there and here by keys; what is not set is the same as a key that is not there."""
    old, new = (flat(safe_yaml.load(text, "the stored config")) for text in (there, here))
    keys = [
        key
        for key in sorted({*old, *new})
        if not is_free(key) and key not in also_free and old.get(key) != new.get(key)
    ]
    keys.sort(key=lambda key: key not in old or key not in new)  # arguments of a class that is not used there come last
    return {key: (old.get(key, _MISSING), new.get(key, _MISSING)) for key in keys}


def apart(folder: Path, config: str) -> Path:
    """Return the folder of a run, or one beside it where it holds a run of another config, named by what differs.

    A config file that was changed since has the same name as before.
    """
    there = stored_config(folder)
    different = {} if there is None else _differing(there, config)
    named = {key: new for key, (old, new) in different.items() if _MISSING not in (old, new)}
    words = in_words(named or {key: str(new) for key, (_, new) in different.items()})
    return folder.parent / words / folder.name if words else folder


def _shown(value: Any) -> str:
    text = "absent" if value is _MISSING else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
