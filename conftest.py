"""Leaves out of the collection what needs an extra that is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["fl_lightning/flower/*.py"]
