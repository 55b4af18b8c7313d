"""Rows in, matplotlib figures out. Nothing is computed here: every number drawn is in a row of `evaluate`.

Figures are made without pyplot, so there is no window, no backend to choose and no global state. Methods
differ by line style and marker as well as by colour, in the order given, the first one standing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.evaluate import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (9.0, 3.7)  # inches: 900 pixels wide at 100 dots per inch
METRIC_NAMES = {"rmse": "RMSE", "auc": "AUC"}
STYLES: tuple[dict[str, Any], ...] = (  # after Okabe and Ito: safe for the colour-blind
    {"color": "#00588A", "linestyle": "-", "marker": "o", "linewidth": 2.0},
    {"color": "#D55E00", "linestyle": "--", "marker": "s", "linewidth": 1.4},
    {"color": "#8A8A8A", "linestyle": ":", "marker": "^", "linewidth": 1.6},
    {"color": "#56B4E9", "linestyle": "-.", "marker": "D", "linewidth": 1.4},
    {"color": "#CC79A7", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v", "linewidth": 1.4},
)


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
            label=f"{name}: {rows[-1]['score']:.3g}" + (f" {unit}" if unit else ""),
            **_style(number, len(rows_by_method), marker=len(rows) == 1),
        )
    if last["skipped"]:
        axes.axvspan(0, last["skipped"], color="0.92", zorder=0, label="not in the score")
    axes.set_xlim(0, last["n_entries"])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"{entries} learned so far")
    axes.set_ylabel(f"{metric} of each window" + (f" ({unit})" if unit else ""))
    axes.set_title(f"Predicted, then learned: running {metric}", fontsize="medium")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend above the curves
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize="small")
    _tidy(axes)


def draw_calibration(
    axes: Axes, points_by_method: Mapping[str, Sequence[Sequence[float]]], *, binary: bool = False
) -> None:
    """Covered against nominal share of central intervals, or share of ones against predicted probability.

    A well calibrated method lies on the diagonal.
    """
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1.0, label="ideal")
    for number, (name, points) in enumerate(points_by_method.items()):
        nominal, covered = zip(*points, strict=True)
        axes.plot(nominal, covered, label=name, **_style(number, len(points_by_method)))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.set_xlabel("predicted probability" if binary else "nominal share of an interval")
    axes.set_ylabel("share of ones" if binary else "share of values inside it")
    axes.set_title(f"Calibration of the {'probabilities' if binary else 'intervals'}", fontsize="medium")
    axes.legend(loc="lower right", frameon=False, fontsize="small")
    _tidy(axes)


def _style(number: int, n_methods: int, *, marker: bool = True) -> dict[str, Any]:
    """The first method is drawn on top of the others."""
    style = STYLES[number % len(STYLES)] | {"zorder": 2 + n_methods - number, "markersize": 3.5}
    return style if marker else style | {"marker": ""}


def _tidy(axes: Axes) -> None:
    axes.grid(color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
