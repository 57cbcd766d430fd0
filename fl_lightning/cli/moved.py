"""Where classes live now that an older configuration names by the module they were in. Imports nothing heavy."""

from typing import Any

# The package whose namespace has the classes of these former modules. Add to it when a module with parts moves.
_FORMER_MODULES = {
    "fl_lightning.aggregators": (
        "anonymous", "communication", "consistent", "control", "echo", "incomplete", "intervals", "last_known",
        "memorized", "normalized", "postponed", "server", "server_adam", "server_momentum", "server_yogi", "stale",
    ),
    "fl_lightning.callbacks": ("channel", "channel_bursts", "channel_groups", "channel_trace", "radio"),
    "fl_lightning.samplers": ("diversity", "entropy", "heterogeneity", "losses", "norms", "submodular"),
}  # fmt: skip
_NOW = {f"{package}.{module}.": f"{package}." for package, modules in _FORMER_MODULES.items() for module in modules}


def current(tree: Any) -> Any:
    """Return a tree of settings, or a text, with the class paths of today.

    >>> current({"class_path": "fl_lightning.samplers.heterogeneity.HeterogeneityAware"})
    {'class_path': 'fl_lightning.samplers.HeterogeneityAware'}
    >>> current("--loop.channel=fl_lightning.callbacks.channel.ChannelFailures")
    '--loop.channel=fl_lightning.callbacks.ChannelFailures'
    """
    if isinstance(tree, str):
        for former, package in _NOW.items() if "fl_lightning." in tree else ():
            tree = tree.replace(former, package)
        return tree
    if isinstance(tree, dict):
        return {key: current(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [current(value) for value in tree]
    return tree
