"""What all figures share: sizes, legends, and the style of each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.evaluation.draw import escaped, palette_style
from spidertensor.evaluation.styles import PALETTE, Style
from spidertensor_study.registry import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: width of a figure, whose text is then readable on a page of 800 pixels; height of a row of panels,
# and of a legend.
WIDTH, PANEL, LEGEND = 9.0, 2.6, 0.9
LETTER = 0.075  # average inches per letter of a legend
LINE = 0.75  # inches of the line before a name
MARKERS = "os^Dvd8p"  # markers of the variants of a method


def method_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Styles by label: methods of the registry look the same in every figure, others get what is left.

    Floors have styles outside the palette, and are drawn below everything else.
    """
    names, known = list(names), {entry.label: entry.style for entry in METHODS.values()}
    known |= _variants(names, known)
    unused = [style for style in PALETTE if style not in known.values()]
    spare = [*unused, *(style for style in reversed(PALETTE) if style not in unused)]
    others = [name for name in names if name not in known]
    style_of = known | {name: spare[place % len(spare)] for place, name in enumerate(others)}
    return {name: _known_style(style_of[name]) for name in names}


def _variants(names: Iterable[str], known: Mapping[str, Style]) -> dict[str, Style]:
    """Styles for runs of one method with different settings: its colour and line, with different markers."""
    names, styles = list(names), {}
    for label, style in known.items():
        variants = [name for name in names if name.startswith(f"{label}, ")]
        markers = [style.marker] * (label not in names) + [each for each in MARKERS if each != style.marker]
        for place, name in enumerate(variants):
            styles[name] = style._replace(marker=markers[place % len(markers)])
    return styles


def _known_style(style: Style) -> dict[str, Any]:
    colors = [each.color for each in PALETTE]
    if style.color not in colors:
        return {"zorder": 2} | style.options()
    return palette_style(colors.index(style.color), len(PALETTE)) | style.options() | {"markersize": 5}


def shared_legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> None:
    """One legend for all panels, below them; `names` are among those of the styles."""
    from matplotlib.lines import Line2D

    labels = {name: escaped(name) for name in names}
    handles = [Line2D([], [], label=label, **styles[name]) for name, label in labels.items()]
    widest = LINE + LETTER * max(map(len, labels.values()), default=0)
    columns = max(int(figure.get_figwidth() / widest), 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4)


def name_panel(axes: Axes, name: str, below: Sequence[str] = ()) -> None:
    """The name of a panel, and small lines of text between it and the panel."""
    pad = 5 + 12 * len(below)
    axes.set_title(escaped(name), fontsize="medium", loc="left", fontweight="bold", pad=pad)
    if below:
        text = escaped("\n".join(below))
        axes.annotate(
            text, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=9,
            linespacing=1.15,
        )  # fmt: skip
