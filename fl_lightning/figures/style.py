"""Colours, axes and files that all pictures share.

The hues follow Okabe and Ito, whose palette colour-blind readers can tell apart. All tones lie in the middle: on white
and on the dark pages of code hosts (#0d1117) text and lines have a contrast of at least 3, so that one transparent
picture suits both.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE = "#6e7781", "#7d8590", "#7d859055"
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#2b87c8", "#d97400", "#0f9a72", "#c25a9b", "#3f9bd1", "#b48a00"


class NotInstalledError(ImportError):
    """A package that pictures or pages are made with is missing; the text says how to get it."""


def require(*packages: str) -> None:
    """Raise :class:`NotInstalledError` unless these packages of the extra ``report`` are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise NotInstalledError(f"{package} is not installed: pip install 'fl-lightning[report]'")


def blank(width: float, height: float, dpi: int = 130) -> "Figure":
    """Return an empty figure of so many inches; matplotlib, which costs half a second, is not imported before."""
    require("matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def bare(axes: "Axes") -> None:
    """Leave of the frame only what carries information."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)


def whole_ticks(axes: "Axes", most: int) -> None:
    """Put ticks at whole numbers alone along the x-axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=most, integer=True))


def save(figure: "Figure", path: Path) -> None:
    """Write a figure by the ending of its name: SVG without a background, others on white; equal figures, equal bytes.

    Args:
        figure: What to write.
        path: Where to; its folder exists.
    """
    import matplotlib

    if path.suffix != ".svg":
        figure.savefig(path)
        return
    with matplotlib.rc_context({"svg.hashsalt": "fl-lightning"}):
        figure.savefig(path, transparent=True, metadata={"Date": None})
    # Hooks that tidy files take trailing blanks away.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def draw(make: Callable[[], "Figure"], *paths: Path) -> str | None:
    """Make a figure and write it to files; return how to install what is missing, or None once it is drawn."""
    try:
        figure = make()
    except NotInstalledError as error:
        return f"no picture: {error}"
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
    return None
