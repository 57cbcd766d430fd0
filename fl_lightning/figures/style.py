"""Colours and axes that all pictures share; after Okabe and Ito, whose palette colour-blind readers can tell apart."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, RULE = "#1f2933", "#66727f", "#cbd2d9"
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#e07b00", "#009e73", "#b3568f", "#56b4e9", "#c9a400"


def bare(axes: "Axes") -> None:
    """Leave of the frame only what carries information."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
