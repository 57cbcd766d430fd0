"""Colours, axes and files that all pictures share.

The hues follow Okabe and Ito, whose palette colour-blind readers can tell apart. All tones lie in the middle: on white
and on the dark pages of code hosts (#0d1117) text and lines have a contrast of at least 3, so that one transparent
picture suits both.
"""

import io
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.output import not_installed, write_durably

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#6e7781"
MUTED = "#7d8590"
RULE = "#7d859055"
BLUE = "#2b87c8"
ORANGE = "#d97400"
GREEN = "#0f9a72"
PURPLE = "#c25a9b"
SKY = "#3f9bd1"
YELLOW = "#b48a00"


class NotInstalledError(ImportError):
    """A package that pictures or pages are made with is missing; the text says how to get it."""


def require(*packages: str) -> None:
    """Raise :class:`NotInstalledError` unless these packages of the extra ``report`` are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise NotInstalledError(not_installed(package, "report"))


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


def apart(wanted: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Move labels apart so that none overlap, each as near to its place as their order allows.

    >>> apart([10, 11, 50], 5, 0, 100)
    [8.0, 13.0, 50.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[tuple[float, int]] = []  # centre of the block, labels in it
    for index in order:
        blocks.append((wanted[index], 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (upper, n), (lower, m) = blocks[-2], blocks[-1]
            blocks[-2:] = [((upper * n + lower * m) / (n + m), n + m)]
    placed = [centre + gap * (position - (size - 1) / 2) for centre, size in blocks for position in range(size)]
    placed = [max(place, low + gap * position) for position, place in enumerate(placed)]
    placed = [min(place, high - gap * (len(placed) - 1 - position)) for position, place in enumerate(placed)]
    return [place for _, place in sorted(zip(order, placed, strict=True))]


def save(figure: "Figure", *paths: Path) -> None:
    """Write a figure by the endings of the names: SVG without a background, others on white; bytes repeat."""
    import matplotlib

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        if path.suffix != ".svg":
            figure.savefig(content, format=path.suffix.lstrip(".") or None)
            write_durably(path, content.getvalue())
            continue
        with matplotlib.rc_context({"svg.hashsalt": "fl-lightning"}):
            figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
        # Hooks that tidy files take trailing blanks away.
        lines = content.getvalue().decode().splitlines()
        write_durably(path, ("\n".join(line.rstrip() for line in lines) + "\n").encode())


def draw(make: Callable[[], "Figure"], *paths: Path) -> str | None:
    """Make a figure and write it to files; return how to install what is missing, or None once it is drawn."""
    try:
        figure = make()
    except NotInstalledError as error:
        return f"no picture: {error}"
    save(figure, *paths)
    return None
