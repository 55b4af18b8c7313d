"""Styles, and figures of the rows of `evaluate`: every number drawn is in a row.

Figures are made without pyplot, so there is no window, no backend to choose and no global state. Methods
differ by line style and marker as well as by colour. In `overview` they have the styles in the order given,
the first one standing out; in the figures of experiments a method looks the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.study.protocols import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (9.0, 3.7)  # inches: 900 pixels wide at 100 dots per inch
COLUMN = 2.2  # inches of a legend that a name takes
METRIC_NAMES = {"rmse": "RMSE", "auc": "AUC"}
STYLES: tuple[dict[str, Any], ...] = (  # after Okabe and Ito: safe for the colour-blind
    {"color": "#00588A", "linestyle": "-", "marker": "o", "linewidth": 2.0},
    {"color": "#D55E00", "linestyle": "--", "marker": "s", "linewidth": 1.4},
    {"color": "#8A8A8A", "linestyle": ":", "marker": "^", "linewidth": 1.6},
    {"color": "#56B4E9", "linestyle": "-.", "marker": "D", "linewidth": 1.4},
    {"color": "#CC79A7", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v", "linewidth": 1.4},
    {"color": "#000000", "linestyle": (0, (9, 1)), "marker": "P", "linewidth": 1.8},
    {"color": "#009E73", "linestyle": (0, (3, 1)), "marker": "X", "linewidth": 1.4},
    {"color": "#E69F00", "linestyle": (0, (7, 1.5, 1, 1.5)), "marker": ">", "linewidth": 1.4},
    {"color": "#6B3FA0", "linestyle": (0, (2, 1)), "marker": "<", "linewidth": 1.4},
    {"color": "#7A5C00", "linestyle": (0, (1, 0.7)), "marker": "*", "linewidth": 1.6},
)
STYLE_OF = {
    "SPIDER-ReLU": 0, "SPIDER-tanh": 3, "spidertensor default": 5, "spidertensor plain": 9, "POST": 1,
    "SVB-DTF": 4, "SVB-GPTF": 6, "SS-GPTF": 7, "CP-WOPT": 8,
}  # fmt: skip
FLOOR_STYLES: dict[str, dict[str, Any]] = {  # thin and grey, without markers
    "static biases": {"color": "0.25", "linestyle": "-.", "linewidth": 1.0, "marker": ""},
    "online biases": {"color": "0.45", "linestyle": "--", "linewidth": 1.0, "marker": ""},
    "mean": {"color": "0.45", "linestyle": ":", "linewidth": 1.2, "marker": ""},
}


def overview(
    rows_by_method: Mapping[str, Sequence[Row]], *, entries: str = "entries", unit: str = ""
) -> Figure:
    """Running curves and calibration side by side, from the rows of `evaluate.prequential`.

    entries: what an entry is called; unit: of the values, none by default
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    curves, calibration = figure.subplots(1, 2, width_ratios=[1.7, 1])
    draw_running_curves(curves, rows_by_method, entries=entries, unit=unit)
    last = {name: rows[-1] for name, rows in rows_by_method.items()}
    binary = any(row["metric"] == "auc" for row in last.values())
    draw_calibration(calibration, {name: row["calibration"] for name, row in last.items()}, binary=binary)
    return figure


def draw_running_curves(
    axes: Axes, rows_by_method: Mapping[str, Sequence[Row]], *, entries: str = "entries", unit: str = ""
) -> None:
    """The score of each window between two rows; the legend has the score over all but the skipped ones."""
    last = next(iter(rows_by_method.values()))[-1]
    metric = METRIC_NAMES[last["metric"]]
    for number, (name, rows) in enumerate(rows_by_method.items()):
        axes.plot(
            [row["n_entries"] for row in rows],
            [row["window_score"] for row in rows],
            label=plain(f"{name}: {rows[-1]['score']:.3g}" + (f" {unit}" if unit else "")),
            **_style(number, len(rows_by_method), marker=len(rows) == 1),
        )
    if last["skipped"]:
        axes.axvspan(0, last["skipped"], color="0.92", zorder=0, label="not in the score")
    axes.set_xlim(0, last["n_entries"])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(plain(f"{entries} learned so far"))
    axes.set_ylabel(plain(f"{metric} of each window" + (f" ({unit})" if unit else "")))
    axes.set_title(f"Predicted, then learned: running {metric}", fontsize="medium")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend above the curves
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize="small")
    tidy(axes)


def draw_calibration(
    axes: Axes, points_by_method: Mapping[str, Sequence[Sequence[float]]], *, binary: bool = False
) -> None:
    """Covered against nominal share of central intervals, or share of ones against predicted probability.

    A well calibrated method lies on the diagonal.
    """
    n = len(points_by_method)
    styles = {name: _style(number, n) for number, name in enumerate(points_by_method)}
    draw_reliability(axes, points_by_method, styles, binary=binary)
    axes.set_title(f"Calibration of the {'probabilities' if binary else 'intervals'}", fontsize="medium")
    axes.legend(loc="lower right", frameon=False, fontsize="small")


def draw_reliability(
    axes: Axes,
    points_by_method: Mapping[str, Sequence[Sequence[float]]],
    styles: Mapping[str, Mapping[str, Any]],
    *,
    binary: bool,
) -> None:
    """The curves of `draw_calibration`, in these styles, without title and legend."""
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1.0, label="ideal")
    for name, points in points_by_method.items():
        nominal, covered = zip(*points, strict=True)
        axes.plot(nominal, covered, label=plain(name), **styles[name])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.set_xlabel("predicted probability" if binary else "nominal share of an interval")
    axes.set_ylabel("share of ones" if binary else "share of values inside it")
    tidy(axes)


def method_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """By name: the methods we know look the same in every figure, others get what is left."""
    names = list(names)
    spare = [number for number in range(len(STYLES)) if number not in STYLE_OF.values()] + [2, 9, 8, 7, 6, 4]
    others = [name for name in names if name not in STYLE_OF and name not in FLOOR_STYLES]
    number_of = {name: spare[place % len(spare)] for place, name in enumerate(others)} | STYLE_OF
    return {
        name: {"zorder": 2} | FLOOR_STYLES[name]
        if name in FLOOR_STYLES
        else _style(number_of[name], len(STYLES)) | {"markersize": 5}
        for name in names
    }


def shared_legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> None:
    """One legend for all panels, below them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=plain(name), **styles[name]) for name in names]
    columns = max(int(figure.get_figwidth() / COLUMN), 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4)


def plain(text: str) -> str:
    """Text as it is: between two dollar signs matplotlib would see mathematics."""
    return text.replace("$", r"\$")


def name_panel(axes: Axes, name: str, below: Sequence[str] = ()) -> None:
    """The name of a panel, and small lines of text between it and the panel."""
    pad = 5 + 10.5 * len(below)
    axes.set_title(plain(name), fontsize="medium", loc="left", fontweight="bold", pad=pad)
    if below:
        text = plain("\n".join(below))
        axes.annotate(
            text, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=8,
            linespacing=1.15,
        )  # fmt: skip


def _style(number: int, n_methods: int, *, marker: bool = True) -> dict[str, Any]:
    """The first method is drawn on top of the others."""
    style = STYLES[number % len(STYLES)] | {"zorder": 2 + n_methods - number, "markersize": 3.5}
    return style if marker else style | {"marker": ""}


def tidy(axes: Axes) -> None:
    axes.grid(color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
