"""Figures of the rows of `protocols`.

Figures are made without pyplot: no window, no backend, no global state. Methods take the styles of the
palette in order, and the first one stands out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from spidertensor.evaluation.metrics import CURVES, METRICS, Curve
from spidertensor.evaluation.protocols import Row
from spidertensor.evaluation.styles import BLUE, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (5.6, 6.4)  # narrow, so that it can be read on a phone
# Style of calibrated intervals: markers only, because lines of several methods would overlap on the diagonal.
HOLLOW = {"markerfacecolor": "white", "linestyle": "none"}

Points = Sequence[Sequence[float]]  # pairs


def overview(
    rows_by_method: Mapping[str, Sequence[Row]], *, entries: str = "entries", unit: str = ""
) -> Figure:
    """Running curves above calibration, from the rows of one of `protocols`.

    entries: the plural noun for entries; unit: of the values
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    curves, calibration = figure.subplots(2, 1, height_ratios=[1.1, 1])
    draw_running_curves(curves, rows_by_method, entries=entries, unit=unit)
    last = {name: rows[-1] for name, rows in rows_by_method.items()}
    plain = {name: row["calibration"] for name, row in last.items()}
    calibrated = {name: row["calibrated"] for name, row in last.items() if row.get("calibrated")}
    draw_calibration(calibration, plain, CURVES[next(iter(last.values()))["metric"]], calibrated)
    return figure


def draw_running_curves(
    axes: Axes, rows_by_method: Mapping[str, Sequence[Row]], *, entries: str = "entries", unit: str = ""
) -> None:
    """Draw the score of each window between rows; the legend shows the score over all scored entries.

    For held-out rows, draw the score on the test set against the number of entries learned.
    """
    last = next(iter(rows_by_method.values()))[-1]
    metric = METRICS[last["metric"]].label
    drawn, of_what = "window_score", "of each window"
    if last["window_score"] is None:
        drawn, of_what = "score", "of the test set"
    for number, (name, rows) in enumerate(rows_by_method.items()):
        axes.plot(
            [row["n_entries"] for row in rows],
            [row[drawn] for row in rows],
            label=escaped(f"{name}: {rows[-1]['score']:.3g}" + (f" {unit}" if unit else "")),
            **palette_style(number, len(rows_by_method), marker=len(rows) == 1),
        )
    if last["skipped"]:
        axes.axvspan(0, last["skipped"], color="0.92", zorder=0, label="not in the score")
    axes.set_xlim(0, last["n_entries"])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(escaped(f"{entries} learned so far"))
    axes.set_ylabel(escaped(f"{metric} {of_what}" + (f" ({unit})" if unit else "")))
    axes.set_title(f"{metric}, {last['case']}", fontsize="medium")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.4 * (high - low))  # room for the legend
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize="small")
    tidy(axes)


def draw_members(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    """Draw the weights of committee members over time, stacked to 1.

    points: rows, or points of a run's curve, with `n_entries` and `members`
    """
    n_entries = [point["n_entries"] for point in points]
    weights = list(zip(*(point["members"] for point in points), strict=True))
    names = [f"model {number}" for number in range(1, len(weights) + 1)]
    # tints of one colour, which keep their order in greyscale
    lighter = 0.85 / max(len(weights) - 1, 1)
    tints = [(BLUE.color, 1 - number * lighter) for number in range(len(weights))]
    axes.stackplot(n_entries, *weights, labels=names, colors=tints, edgecolor="white", linewidth=0.8)
    axes.set_xlim(0, n_entries[-1])
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter(_percent)
    axes.spines[["top", "right"]].set_visible(False)


def draw_calibration(
    axes: Axes,
    points_by_method: Mapping[str, Points],
    curve: Curve,
    calibrated: Mapping[str, Points] = MappingProxyType({}),
) -> None:
    """Draw observed against predicted shares; a well calibrated method lies on the diagonal."""
    n = len(points_by_method)
    styles = {name: palette_style(number, n) for number, name in enumerate(points_by_method)}
    draw_reliability(axes, points_by_method, styles, curve, calibrated)
    axes.set_title(f"Calibration of the {curve.what}", fontsize="medium")
    axes.legend(loc="lower right", frameon=False, fontsize="small", labelspacing=0.3)


def draw_reliability(
    axes: Axes,
    points_by_method: Mapping[str, Points],
    styles: Mapping[str, Mapping[str, Any]],
    curve: Curve,
    calibrated: Mapping[str, Points] = MappingProxyType({}),
) -> None:
    """Draw the curves of `draw_calibration` in these styles, without title and legend.

    calibrated: curves of calibrated intervals, for methods that have them; drawn with hollow markers
    """
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1.0, label="ideal")
    for name, points in points_by_method.items():
        axes.plot(*zip(*points, strict=True), label=escaped(name), **styles[name])
        if name in calibrated:
            style = {**styles[name], **HOLLOW}
            axes.plot(*zip(*calibrated[name], strict=True), label=escaped(f"{name}, calibrated"), **style)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_percent)
    axes.set_xlabel(curve.predicted)
    axes.set_ylabel(curve.observed)
    tidy(axes)


def _percent(share: float, place: float) -> str:
    return f"{100 * share:.0f} %"


def escaped(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def palette_style(number: int, n_methods: int, *, marker: bool = True) -> dict[str, Any]:
    """Plot options of a method; the first method is drawn on top."""
    style = PALETTE[number % len(PALETTE)].options() | {"zorder": 2 + n_methods - number, "markersize": 3.5}
    return style if marker else style | {"marker": ""}


def tidy(axes: Axes) -> None:
    axes.grid(color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
