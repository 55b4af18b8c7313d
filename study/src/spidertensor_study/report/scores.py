"""Figures of scores: over rank and batch size, over the stream, in time order."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from spidertensor.evaluation.draw import tidy
from spidertensor.evaluation.metrics import METRICS
from spidertensor_study import registry
from spidertensor_study.report import runs as r
from spidertensor_study.report.panels import LEGEND, PANEL, WIDTH, method_styles, name_panel, shared_legend
from spidertensor_study.report.runs import Cell, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKS_ON_THE_FLY = (3, 8)  # the paper's
START = (
    0.15  # share of a running curve that does not set the range: the start, where every method improves fast
)
MARKS = 6  # markers along a running curve
HARDLY = (
    0.95  # share of the way from the best score to that of the mean beyond which a method is off the scale
)
FAR = 4  # a method this many times as far from the best as the second worst is off the scale
SIDEWAYS = 0.4  # share of the distance between two positions over which the methods are spread
NOTE = 60  # characters that fit above a panel

MEAN, FLOORS = r.LABELS["mean"], [r.LABELS[name] for name in registry.FLOORS]

NO_BREAK = "\N{NO-BREAK SPACE}"

Styles = Mapping[str, Mapping[str, Any]]


class Points(NamedTuple):
    """What is drawn for one method in one panel."""

    x: Sequence[float]
    cells: Sequence[Cell]
    results: Sequence[tuple[str, Cell]]  # position and result, shown as text if out of range
    start: int = 0  # first cell that may set the range
    flat: bool = False  # one result for all x
    bars: bool = False  # deviations are bars, which must fit in the range; bands may be cut


Drawn = Mapping[str, Points]  # by name


def over_grid(found: Sequence[Run]) -> Figure | None:
    """Figure 1: score over rank at the usual batch size, beside it over batch size at the usual rank."""
    grid = r.figure_grid(found)
    ranks = sorted(
        {run.rank for run in grid if run.batch_size == r.BATCH_SIZE and run.method not in r.RANK_FREE}
    )
    sizes = sorted({run.batch_size for run in grid if run.rank == r.RANK and run.method not in r.BATCH_FREE})
    if not ranks and not sizes:
        return None
    over_rank = {str(rank): (rank, r.BATCH_SIZE) for rank in ranks}
    over_size = {str(size): (r.RANK, size) for size in sizes}
    sweeps = [
        (f"rank (batch size {r.BATCH_SIZE})", over_rank, r.names(grid, r.RANK_FREE)),
        (f"batch size (rank {r.RANK})", over_size, r.names(grid, r.BATCH_FREE)),
    ]
    data_sets, names = r.data_sets(grid), r.names(grid)
    styles, seen = method_styles(names), set()
    figure, panels = _panels(len(data_sets), 2, share="row")
    for data, beside in zip(data_sets, panels, strict=True):
        of_data = [run for run in grid if run.data == data]
        drawn = [_sweep(of_data, names, data, places, flat) for _, places, flat in sweeps]
        low, high = _score_axes(beside, [data] * len(beside), r.metric(of_data, data), drawn)
        for axes, each, (label, places, _) in zip(beside, drawn, sweeps, strict=True):
            seen |= _inside(each, low, high)
            for name, points in each.items():
                _dots(axes, points, styles[name], low, high)
            axes.set_xticks(range(len(places)), list(places))
            axes.set_xlim(-0.4, max(len(places) - 0.6, 0.4))
            axes.set_xlabel(label)
    shared_legend(figure, styles, [name for name in names if name in seen])
    return figure


def _sweep(
    of_data: Sequence[Run],
    names: Sequence[str],
    data: str,
    places: Mapping[str, tuple[int, int]],
    flat: Sequence[str],
) -> Drawn:
    """Draw one panel. places: (rank, batch size) by label; flat: methods that do not see what is varied"""
    drawn = {}
    for number, name in enumerate(names):
        cells = {label: r.cell(r.at(of_data, name, data, *place), "paper") for label, place in places.items()}
        known = [(place, label, cell) for place, (label, cell) in enumerate(cells.items()) if cell]
        if not known:
            continue
        shift = SIDEWAYS * (number / max(len(names) - 1, 1) - 0.5)  # so that bars do not hide each other
        x = [place + shift for place, _, _ in known]
        results = [(f" at {label}", cell) for _, label, cell in known]
        drawn[name] = Points(x, [cell for *_, cell in known], results, flat=name in flat, bars=True)
    # A single point shows no variation; there is another figure of where methods stand.
    several = {name: points for name, points in drawn.items() if len(points.cells) > 1 or points.flat}
    return several if any(not points.flat for points in several.values()) else drawn


def _dots(axes: Axes, points: Points, style: Mapping[str, Any], low: float, high: float) -> None:
    """Means with their deviations."""
    means = [cell.mean for cell in points.cells]
    if points.flat:
        axes.axhline(means[0], **{**style, "marker": ""})
        return
    (line,) = axes.plot(points.x, means, **style)
    bars = [
        (x, cell.mean, cell.sd)
        for x, cell in zip(points.x, points.cells, strict=True)
        if cell.seeds > 1
        and low <= cell.mean <= high  # otherwise a bar would cross the panel without a point in it
    ]
    if bars:
        x, y, deviations = zip(*bars, strict=True)
        axes.errorbar(
            x, y, yerr=deviations, fmt="none", ecolor=line.get_color(), elinewidth=1.0, capsize=2.0,
            zorder=line.get_zorder(),
        )  # fmt: skip


def on_the_fly(found: Sequence[Run]) -> Figure | None:
    """Figure 2: score of the test set while the stream is learned, a column of panels for each rank."""
    grid = [run for run in r.figure_grid(found) if len(run.curve) > 1 and run.method not in r.STATIC]
    grid = [run for run in grid if run.batch_size == r.BATCH_SIZE or run.method in r.BATCH_FREE]
    ranks = [rank for rank in RANKS_ON_THE_FLY if any(run.rank == rank for run in grid)]
    if not ranks:
        return None
    data_sets, names = r.data_sets(grid), r.names(grid)
    styles, seen = method_styles(names), set()
    figure, panels = _panels(len(data_sets), len(ranks), share="row")
    for data, beside in zip(data_sets, panels, strict=True):
        drawn = [_curves(grid, names, data, rank, "paper") for rank in ranks]
        titles = [f"{data}, rank {rank}" for rank in ranks]
        low, high = _score_axes(beside, titles, r.metric(grid, data), drawn)
        for axes, each in zip(beside, drawn, strict=True):
            seen |= _inside(each, low, high)
            _lines(axes, each, styles, low, high)
    for axes in panels[-1]:
        axes.set_xlabel("entries learned, thousands")
    shared_legend(figure, styles, [name for name in names if name in seen])
    return figure


def in_time_order(found: Sequence[Run]) -> Figure | None:
    """The score of each window of the stream, each entry predicted before it is learned."""
    chosen = [
        run
        for run in r.results(found, "prequential")
        if len(run.curve) > 1 and (run.rank == r.RANK or run.method in r.RANK_FREE)
    ]
    data_sets, names = r.data_sets(chosen), r.names(chosen)
    if not data_sets:
        return None
    styles, seen = method_styles(names), set()
    figure, panels = _panels(1, len(data_sets), height=1.3 * PANEL)
    for data, axes in zip(data_sets, panels[0], strict=True):
        drawn, title = _curves(chosen, names, data, r.RANK, "window"), f"{data}, rank {r.RANK}"
        low, high = _score_axes([axes], [title], r.metric(chosen, data), [drawn], " of each window")
        seen |= _inside(drawn, low, high)
        _lines(axes, drawn, styles, low, high)
        axes.set_xlabel("entries learned, thousands")
    shared_legend(figure, styles, [name for name in names if name in seen])
    return figure


def _curves(chosen: Sequence[Run], names: Sequence[str], data: str, rank: int, key: str) -> Drawn:
    drawn = {}
    for name in names:
        curve = r.mean_curve(r.at(chosen, name, data, rank, r.BATCH_SIZE), key)
        if curve:
            cells = list(curve.values())
            drawn[name] = Points(list(curve), cells, [("", cells[-1])], start=int(START * len(cells)))
    return drawn


def _lines(axes: Axes, drawn: Drawn, styles: Styles, low: float, high: float) -> None:
    """Mean over the seeds, with a band of one deviation where the mean is visible."""
    for number, (name, (n, cells, *_)) in enumerate(drawn.items()):
        every = max(len(n) // MARKS, 1)
        first = number * every // len(drawn)  # so that markers of different methods do not coincide
        (line,) = axes.plot(n, [cell.mean for cell in cells], markevery=(first, every), **styles[name])
        if cells[-1].seeds > 1:
            ends = ([cell.mean + side * cell.sd for cell in cells] for side in (-1, 1))
            seen = [low <= cell.mean <= high for cell in cells]
            axes.fill_between(n, *ends, where=seen, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,g}")
    axes.set_xlim(0, max((points.x[-1] for points in drawn.values()), default=1))


def _panels(
    rows: int, columns: int, height: float = PANEL, share: Literal["row", "col"] = "col"
) -> tuple[Figure, Any]:
    """Give the panels of a row, or of a column, one range."""
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(WIDTH if columns > 1 else WIDTH / 2, height * rows + LEGEND), layout="constrained"
    )
    panels = figure.subplots(rows, columns, sharey=share, squeeze=False)
    for axes in panels.flat:
        tidy(axes)
    return figure, panels


def shown_range(drawn: Sequence[Drawn], metric: str) -> tuple[float, float]:
    """The range of an axis, chosen so that a method that fails does not make all others look alike.

    A method is off the scale if it is hardly better than predicting the mean, or worse, or, of three methods
    or more, FAR times as far from the best as the second worst, by medians. The mean itself sets no range,
    unless it is alone.
    """
    ends: dict[str, list[tuple[float, float]]] = {}  # by name: loss, and how far its bar reaches
    for name, points in (pair for panel in drawn for pair in panel.items()):
        for cell in points.cells[points.start :]:
            if math.isfinite(cell.mean):
                bar = cell.sd if points.bars and cell.seeds > 1 else 0.0
                ends.setdefault(name, []).append((r.loss(cell.mean, metric), bar))
    of_mean = max((loss for loss, _ in ends.get(MEAN, [])), default=math.inf)
    shown = {name: each for name, each in ends.items() if name != MEAN} or ends
    if not shown:
        return 0.0, 1.0
    best = min(loss for each in shown.values() for loss, _ in each)
    middles = sorted(median(loss for loss, _ in each) for name, each in shown.items() if name not in FLOORS)
    limit = best + FAR * (middles[-2] - best) if len(middles) > 2 else math.inf
    if of_mean > best:  # otherwise nothing is better than the mean, and everything is shown
        limit = min(limit, best + HARDLY * (of_mean - best))
    inside = [(loss, bar) for each in shown.values() for loss, bar in each if loss <= limit]
    low = min(loss - bar for loss, bar in inside)
    high = max(min(loss + bar, limit) for loss, bar in inside)
    pad = 0.05 * (high - low) or 0.01 * abs(low) or 0.01
    low, high = low - pad, high + pad
    return (-high, -low) if METRICS[metric].higher_is_better else (low, high)


def _score_axes(
    beside: Sequence[Axes], titles: Sequence[str], metric: str, drawn: Sequence[Drawn], what: str = ""
) -> tuple[float, float]:
    """Titles, label and range of panels that share an axis; results out of range are listed above each."""
    low, high = shown_range(drawn, metric)
    beside[0].set_ylim(low, high)
    better = "higher" if METRICS[metric].higher_is_better else "lower"
    beside[0].set_ylabel(f"{METRICS[metric].label}{what}, {better} is better")
    for axes, title, each in zip(beside, titles, drawn, strict=True):
        if not each:
            axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color="0.45")
        name_panel(axes, title, _off_the_scale(each, low, high, metric))
    return low, high


def _inside(drawn: Drawn, low: float, high: float) -> set[str]:
    """The methods that are visible, for the legend."""
    return {name for name, points in drawn.items() if any(low <= cell.mean <= high for cell in points.cells)}


def _off_the_scale(drawn: Drawn, low: float, high: float, metric: str) -> list[str]:
    outside = []
    for name, points in drawn.items():
        results = points.results[:1] if points.flat else points.results
        missing = [(where, cell) for where, cell in results if not low <= cell.mean <= high]
        some = len(missing) < len(results)
        texts = [f"{cell.mean:.3g}{where if some else ''}" for where, cell in missing]
        if texts:
            outside.append(f"{name} {', '.join(dict.fromkeys(texts))}".replace(" ", NO_BREAK))
    if not outside:
        return []
    arrow = "↓" if METRICS[metric].higher_is_better else "↑"
    return textwrap.wrap(f"{arrow} off scale: {'; '.join(outside)}", NOTE, break_on_hyphens=False)
