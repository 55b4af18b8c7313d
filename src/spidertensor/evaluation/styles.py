"""Line styles of figures. Methods differ by line style and marker as well as by colour."""

from __future__ import annotations

from typing import Any, NamedTuple


class Style(NamedTuple):
    """Line options, named as in matplotlib."""

    color: str
    linestyle: str | tuple[int, tuple[float, ...]]
    marker: str = ""
    linewidth: float = 1.4

    def options(self) -> dict[str, Any]:
        return self._asdict()


# after Okabe and Ito: distinguishable with colour blindness
BLUE = Style("#00588A", "-", "o", 2.0)
ORANGE = Style("#D55E00", "--", "s")
GREY = Style("#8A8A8A", ":", "^", 1.6)
SKY = Style("#56B4E9", "-.", "D")
PINK = Style("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v")
BLACK = Style("#000000", (0, (9, 1)), "P", 1.8)
GREEN = Style("#009E73", (0, (3, 1)), "X")
YELLOW = Style("#E69F00", (0, (7, 1.5, 1, 1.5)), ">")
PURPLE = Style("#6B3FA0", (0, (2, 1)), "<")
BROWN = Style("#7A5C00", (0, (1, 0.7)), "*", 1.6)
WINE = Style("#882255", (0, (4, 1, 1, 1)), "h", 1.6)
PURPLE_DASHED = Style(PURPLE.color, "--", "1")
PURPLE_DOTTED = Style(PURPLE.color, ":", "2")
PINK_DASHED = Style(PINK.color, (0, (6, 2)), "^")
TEAL = Style("#44AA99", (0, (8, 2, 2, 2)), "d")
OLIVE = Style("#999933", (0, (6, 1, 1, 1, 1, 1, 1, 1)), "p")
PALETTE = (BLUE, ORANGE, GREY, SKY, PINK, BLACK, GREEN, YELLOW, PURPLE, BROWN, WINE)

# floors: thin, grey, no markers
THIN_DASHDOTTED = Style("0.25", "-.", linewidth=1.0)
THIN_DASHED = Style("0.45", "--", linewidth=1.0)
THIN_DOTTED = Style("0.45", ":", linewidth=1.2)
