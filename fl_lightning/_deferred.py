"""Lets torchmetrics, which Lightning imports, be there before matplotlib and scipy.signal are.

torchmetrics imports both for what few programs use: the plots of its metrics, and a name that an audio package looks
for. Together they take as long as torch. So while torchmetrics is imported, stand-ins answer for them; a stand-in
imports the real module when something of it is used, and is not in the way of anybody else who imports it.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

_NAMES = ("matplotlib", "matplotlib.axes", "matplotlib.pyplot", "scipy.signal")


class StandIn(ModuleType):
    """Has the few attributes that torchmetrics looks at while it is imported, and all others of the real module.

    Args:
        name: Of the module.
        known: What can be answered without it.
    """

    def __init__(self, name: str, known: dict[str, Any]) -> None:
        super().__init__(name, f"Stands for {name} until something of it is used.")
        vars(self)["_known"] = known

    def __getattr__(self, name: str) -> Any:
        """Return what is known, as long as torchmetrics is being imported; then import the real module."""
        known = vars(self)["_known"]
        if name in known and sys.modules.get(self.__name__) is self:
            return known[name]
        if sys.modules.get(self.__name__) is self:
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)  # somebody looks through all modules
            for each in _NAMES:
                _remove(each)
        return getattr(import_module(self.__name__), name)


class LaterContext(ContextDecorator):
    """A context of matplotlib's styles that asks for matplotlib when it is entered.

    Args:
        arguments: Of ``matplotlib.pyplot.style.context``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._make: Callable[[], Any] = lambda: import_module("matplotlib.pyplot").style.context(*arguments, **options)
        self._entered: list[Any] = []

    def __enter__(self) -> Any:
        self._entered.append(self._make())
        return self._entered[-1].__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self._entered.pop().__exit__(kind, error, trace)


class TorchmetricsFinder(MetaPathFinder, Loader):
    """Finds torchmetrics as it would be found, and puts the stand-ins up while it is imported."""

    def __init__(self) -> None:
        self._loader: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Take the place of torchmetrics' loader, once."""
        if fullname != "torchmetrics":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the real loader."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Import torchmetrics among stand-ins."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        _put_up()
        try:
            self._loader.exec_module(module)
        finally:
            for name in _NAMES:
                _remove(name)


def _put_up() -> None:
    """Let stand-ins answer for what is installed but not imported yet."""
    if "matplotlib" not in sys.modules and PathFinder.find_spec("matplotlib") is not None:
        axes = StandIn("matplotlib.axes", {"Axes": object})
        pyplot = StandIn("matplotlib.pyplot", {"Figure": object, "style": SimpleNamespace(context=LaterContext)})
        inner = {"axes": axes, "pyplot": pyplot, "colors": SimpleNamespace(Colormap=object)}
        sys.modules |= {each.__name__: each for each in (StandIn("matplotlib", inner), axes, pyplot)}
    if "scipy.signal" not in sys.modules and PathFinder.find_spec("scipy") is not None:
        sys.modules["scipy.signal"] = StandIn("scipy.signal", {"hamming": None})


def _remove(name: str) -> None:
    if isinstance(sys.modules.get(name), StandIn):
        del sys.modules[name]


def install() -> None:
    """Put the finder first, unless torchmetrics was imported already."""
    if "torchmetrics" not in sys.modules and not any(isinstance(one, TorchmetricsFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, TorchmetricsFinder())
