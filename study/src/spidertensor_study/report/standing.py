"""A figure of where every method stands: a line of dots for each, with its name and its cost.

Figures 1 and 2 show how scores change with rank, batch size and stream. This one has all methods in one
setting, and can be read at the width of a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.evaluation.draw import escaped, tidy
from spidertensor.evaluation.metrics import METRICS
from spidertensor_study.report import runs as r
from spidertensor_study.report.costs import cost, three_digits, timed
from spidertensor_study.report.panels import WIDTH, method_styles, name_panel
from spidertensor_study.report.runs import Cell, Run
from spidertensor_study.report.scores import Points, Styles, shown_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 0.23  # inches per method
_SMALL: dict[str, Any] = {"fontsize": "small", "va": "center"}


def standing(found: Sequence[Run]) -> Figure | None:
    """Mean score and deviation at the usual rank and batch size, a panel for each data set, and the cost."""
    grid = r.figure_grid(found)
    by_data = {data: _cells(grid, data) for data in r.data_sets(grid)}
    by_data = {data: cells for data, cells in by_data.items() if cells}
    names = [name for name in r.names(grid) if any(name in cells for cells in by_data.values())]
    if not names:
        return None
    from matplotlib.figure import Figure

    costs = _costs(found, names)
    styles, height = method_styles(names), 1.0 + LINE * len(names)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, len(by_data) + bool(costs), squeeze=False, sharey=True)[0]
    for axes, (data, cells) in zip(panels, by_data.items(), strict=False):
        metric = METRICS[r.metric(grid, data)]
        _dots(axes, names, cells, styles, r.metric(grid, data))
        axes.set_xlabel(f"{metric.label},\n{'higher' if metric.higher_is_better else 'lower'} is better")
        name_panel(axes, data)
    if costs:
        _bars(panels[-1], names, costs)
    panels[0].set_yticks(range(len(names)), [escaped(name) for name in names])
    panels[0].set_ylim(len(names) - 0.4, -0.6)  # the first method at the top
    for axes in panels:
        tidy(axes)
    return figure


def _cells(grid: Sequence[Run], data: str) -> dict[str, Cell]:
    cells = {
        name: r.cell(r.at(grid, name, data, r.RANK, r.BATCH_SIZE), "paper")
        for name in r.names(run for run in grid if run.data == data)
    }
    return {name: cell for name, cell in cells.items() if cell}


def _costs(found: Sequence[Run], names: Sequence[str]) -> dict[str, float]:
    """Mean microseconds per entry over the data sets that a method was timed on."""
    alone, costs = timed(found), {}
    for name in names:
        cells = [cost(alone, name, data, r.RANK, r.BATCH_SIZE) for data in r.data_sets(alone)]
        known = r.average(cell.mean for cell in cells if cell)
        if known:
            costs[name] = known.mean
    return costs


def _dots(axes: Axes, names: Sequence[str], cells: Mapping[str, Cell], styles: Styles, metric: str) -> None:
    """Show a score that is off the scale as a number at the edge."""
    low, high = shown_range(
        [{name: Points([0], [cell], [], bars=True) for name, cell in cells.items()}], metric
    )
    axes.set_xlim(low, high)
    axes.locator_params(axis="x", nbins=2)
    axes.tick_params(axis="x", labelsize="small")
    for place, name in enumerate(names):
        cell = cells.get(name)
        if cell is None:
            axes.annotate(
                "not run",
                (0.5, place),
                xycoords=("axes fraction", "data"),
                ha="center",
                color="0.45",
                **_SMALL,
            )
        elif low <= cell.mean <= high:
            sd = cell.sd if cell.seeds > 1 else 0
            color, marker = styles[name]["color"], styles[name].get("marker") or "|"
            axes.errorbar(cell.mean, place, xerr=sd, color=color, marker=marker, markersize=6, capsize=2)
        else:
            worse = METRICS[metric].higher_is_better
            text = f"← {r.number(cell.mean)}" if worse else f"{r.number(cell.mean)} →"
            where = (0.02, place) if worse else (0.98, place)
            side = "left" if worse else "right"
            axes.annotate(text, where, xycoords=("axes fraction", "data"), ha=side, **_SMALL)


def _bars(axes: Axes, names: Sequence[str], costs: Mapping[str, float]) -> None:
    axes.set_xscale("log")
    least, most = min(costs.values()) / 2, max(costs.values())
    for place, name in enumerate(names):
        if name in costs:
            axes.barh(place, costs[name] - least, left=least, height=0.5, color="0.8")
        text = three_digits(costs[name]) if name in costs else "not timed"
        axes.annotate(text, (least, place), (3, 0), textcoords="offset points", ha="left", **_SMALL)
    axes.set_xlim(least, 2 * most)
    axes.set_xlabel("µs per entry,\nlog scale")
    name_panel(axes, "cost")
