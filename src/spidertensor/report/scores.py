"""Figures of scores: over rank and batch size, over the stream, in time order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.report import runs as r
from spidertensor.report.behaviour import START
from spidertensor.report.draw import method_styles, shared_legend, tidy
from spidertensor.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL = 9.0, 2.7  # inches: 900 pixels at 100 dots per inch, and the height of a row of panels
LEGEND = 1.0
RANKS_ON_THE_FLY = (3, 8)  # the paper's
MARKS = 6  # markers along a running curve

Styles = Mapping[str, Mapping[str, Any]]
Series = dict[str, list[list[float]]]  # by name, what is drawn of it; the last of each is a result


def over_grid(found: Sequence[Run]) -> Figure | None:
    """Figure 1: score over rank at the usual batch size, and over batch size at the usual rank."""
    grid = r.grid(found)
    ranks = sorted(
        {run.rank for run in grid if run.batch_size == r.BATCH_SIZE and run.method not in r.RANK_FREE}
    )
    sizes = sorted({run.batch_size for run in grid if run.rank == r.RANK and run.method not in r.BATCH_FREE})
    if not ranks and not sizes:
        return None
    sweeps = [
        (f"rank, at batch size {r.BATCH_SIZE}", ranks, [(rank, r.BATCH_SIZE) for rank in ranks]),
        (f"batch size, at rank {r.RANK}", sizes, [(r.RANK, size) for size in sizes]),
    ]
    data_sets, names = r.data_sets(grid), r.names(grid)
    styles = method_styles(names)
    figure, panels = _panels(len(data_sets), columns=2, share="row")
    for data, row in zip(data_sets, panels, strict=True):
        drawn: Series = {}
        for axes, (label, ticks, places) in zip(row, sweeps, strict=True):
            for number, name in enumerate(names):
                cells = [r.cell(r.at(grid, name, data, *place), "paper") for place in places]
                shift = 0.025 * (number - (len(names) - 1) / 2)  # so that deviations do not hide each other
                known = [(place, cell) for place, cell in enumerate(cells) if cell]
                if known:
                    _points(axes, known, shift, styles[name], flat=name in map(r.LABELS.get, r.FLOORS))
                    drawn.setdefault(name, []).extend([cell.mean] for _, cell in known)
            axes.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
            axes.set_xlim(-0.4, max(len(ticks) - 0.6, 0.4))
            axes.set_xlabel(label)
        _score_axis(row, r.metric(grid, data), drawn)
        row[0].set_title(data, fontsize="medium", loc="left", fontweight="bold")
    shared_legend(figure, styles, names)
    return figure


def _points(axes: Axes, known: Any, shift: float, style: Mapping[str, Any], *, flat: bool) -> None:
    """Means with their deviations; a floor is a line across."""
    if flat:
        axes.axhline(known[0][1].mean, **style)
        return
    x = [place + shift for place, _ in known]
    deviations = [0 if math.isnan(cell.sd) else cell.sd for _, cell in known]
    line = axes.plot(x, [cell.mean for _, cell in known], **style)[0]
    if any(deviations):
        axes.errorbar(
            x, [cell.mean for _, cell in known], yerr=deviations, fmt="none", ecolor=line.get_color(),
            elinewidth=1.0, capsize=2.0, zorder=line.get_zorder(),
        )  # fmt: skip


def on_the_fly(found: Sequence[Run]) -> Figure | None:
    """Figure 2: score of the test set while the stream is learned."""
    grid = [run for run in r.grid(found) if len(run.curve) > 1 and run.method not in r.STATIC]
    grid = [run for run in grid if run.batch_size == r.BATCH_SIZE or run.method in r.BATCH_FREE]
    ranks = [rank for rank in RANKS_ON_THE_FLY if any(run.rank == rank for run in grid)]
    if not ranks:
        return None
    data_sets, names = r.data_sets(grid), r.names(grid)
    styles = method_styles(names)
    figure, panels = _panels(len(data_sets), columns=len(ranks), share="row")
    for data, row in zip(data_sets, panels, strict=True):
        drawn: Series = {}
        for axes, rank in zip(row, ranks, strict=True):
            groups = {name: r.at(grid, name, data, rank, r.BATCH_SIZE) for name in names}
            _curves(axes, groups, "paper", styles, drawn)
            axes.set_title(f"{data}, rank {rank}", fontsize="medium", loc="left", fontweight="bold")
        _score_axis(row, r.metric(grid, data), drawn)
    shared_legend(figure, styles, names)
    return figure


def in_time_order(found: Sequence[Run]) -> Figure | None:
    """Each entry predicted before it is learned: the score of each window of the stream."""
    chosen = [run for run in found if run.protocol == "prequential" and run.experiment not in r.APART]
    chosen = [
        run for run in chosen if len(run.curve) > 1 and (run.rank == r.RANK or run.method in r.RANK_FREE)
    ]
    data_sets, names = r.data_sets(chosen), r.names(chosen)
    if not data_sets:
        return None
    styles = method_styles(names)
    figure, panels = _panels(len(data_sets), columns=1, share="row")
    for data, row in zip(data_sets, panels, strict=True):
        drawn: Series = {}
        groups = {name: r.at(chosen, name, data, r.RANK, r.BATCH_SIZE) for name in names}
        _curves(row[0], groups, "window", styles, drawn)
        row[0].set_title(f"{data}, rank {r.RANK}", fontsize="medium", loc="left", fontweight="bold")
        _score_axis(row, r.metric(chosen, data), drawn, " of each window")
    shared_legend(figure, styles, names)
    return figure


def _curves(axes: Axes, groups: Mapping[str, Sequence[Run]], key: str, styles: Styles, drawn: Series) -> None:
    """Mean over the seeds, with a band of one deviation; appends what is drawn to `drawn`, but for the
    start, where every method is far from where it ends."""
    end = 0
    for number, (name, group) in enumerate(groups.items()):
        curve = r.mean_curve(group, key)
        if not curve:
            continue
        n, cells = list(curve), list(curve.values())
        every = max(len(n) // MARKS, 1)
        start = number * every // max(len(groups), 1)  # so that markers of different methods do not coincide
        (line,) = axes.plot(n, [cell.mean for cell in cells], markevery=(start, every), **styles[name])
        if cells[-1].seeds > 1:
            low, high = ([cell.mean + side * cell.sd for cell in cells] for side in (-1, 1))
            axes.fill_between(n, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        drawn.setdefault(name, []).append([cell.mean for cell in cells[int(START * len(cells)) :]])
        end = max(end, n[-1])
    axes.set_xlabel("entries learned so far, thousands")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,g}")
    axes.set_xlim(0, end or 1)


def _panels(rows: int, columns: int, share: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, PANEL * rows + LEGEND), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=share, squeeze=False)
    for axes in panels.flat:
        tidy(axes)
    return figure, panels


def shown_range(values: Iterable[Sequence[float]], metric: str) -> tuple[float, float]:
    """The range of an axis for the values of several methods: a method that fails must not make all the
    others look alike.

    Left out is a method whose best value is more than 2.5 times as far from the best of all as those of
    seven tenths of the methods; of fewer than four none is.
    """
    losses = [[r.loss(value, metric) for value in each if math.isfinite(value)] for each in values]
    losses = sorted((each for each in losses if each), key=min)
    if not losses:
        return 0.0, 1.0
    best = [min(each) for each in losses]
    limit = best[0] + 2.5 * (best[int(0.7 * (len(best) - 1))] - best[0]) if len(best) > 3 else math.inf
    worst = max(max(each) for each in losses if min(each) <= limit)
    pad = 0.06 * (worst - best[0]) or 0.01 * abs(best[0]) or 0.01
    ends = (best[0] - pad, worst + pad)
    return (-ends[1], -ends[0]) if metric == "auc" else ends


def _score_axis(row: Sequence[Axes], metric: str, drawn: Series, what: str = "") -> None:
    """Label and range of a row of panels; a method that is never inside is named above, with its results."""
    values = {name: [value for each in series for value in each] for name, series in drawn.items()}
    low, high = shown_range(values.values(), metric)
    row[0].set_ylim(low, high)
    better = "higher" if metric == "auc" else "lower"
    row[0].set_ylabel(f"{r.METRICS[metric]}{what}\n({better} is better)")
    outside = [
        f"{name} {_span([each[-1] for each in drawn[name]])}"
        for name in drawn
        if not any(low <= value <= high for value in values[name])
    ]
    if outside:
        arrow = "↓" if metric == "auc" else "↑"
        above = "\n" * (len(outside) > 1)  # the name of the panel stands on the lowest line
        note = f"{arrow} off the scale: {', '.join(outside)}{above}"
        row[-1].set_title(note, fontsize="small", loc="right")


def _span(values: Sequence[float]) -> str:
    ends = [f"{end:.3g}" for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
