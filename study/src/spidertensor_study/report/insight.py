"""Figures of time, weights and calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.evaluation.draw import HOLLOW, draw_members, draw_reliability, escaped, tidy
from spidertensor.evaluation.metrics import CURVES
from spidertensor_study.registry import FLOORS
from spidertensor_study.report import runs as r
from spidertensor_study.report.behaviour import PRUNED
from spidertensor_study.report.costs import cost, three_digits, timed
from spidertensor_study.report.panels import (
    LEGEND,
    PANEL,
    WIDTH,
    method_styles,
    name_panel,
    shared_legend,
)
from spidertensor_study.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 41  # bins of a histogram of weights


def speed(found: Sequence[Run]) -> Figure | None:
    """Microseconds per entry as bars, one panel for each data set."""
    from matplotlib.figure import Figure

    found = timed(found)
    names = list(reversed(r.names(found)))  # bars are numbered from below
    cells = {
        data: [cost(found, name, data, r.RANK, r.BATCH_SIZE) for name in names] for data in r.data_sets(found)
    }
    known = [cell.mean for each in cells.values() for cell in each if cell]
    if not known:
        return None
    styles = method_styles(names)
    figure = Figure(figsize=(WIDTH, 1.0 + 0.26 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(cells), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (data, each) in zip(panels, cells.items(), strict=True):
        for place, (name, cell) in enumerate(zip(names, each, strict=True)):
            if cell:
                axes.barh(place, cell.mean, color=styles[name]["color"])
            text = three_digits(cell.mean) if cell else "not run"
            axes.annotate(
                text, (cell.mean if cell else min(known) / 2, place), (3, 0), textcoords="offset points",
                va="center", fontsize="small",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(min(known) / 2, 8 * max(known))  # room for the numbers
        axes.set_xlabel("µs per entry,\nlog scale")
        axes.set_yticks(range(len(names)), [escaped(name) for name in names])
        name_panel(axes, data)
        tidy(axes)
        axes.grid(visible=False, axis="y")
    return figure


def scaling(found: Sequence[Run]) -> Figure | None:
    """Cost of an entry over the batch size; below it, share of the time over share of the stream."""
    found = [run for run in timed(found) if run.rank == r.RANK and run.method not in (*r.STATIC, *FLOORS)]
    data_sets, names = r.data_sets(found), r.names(found)
    if not data_sets:
        return None
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    curves = [run for run in found if len(run.curve) > 1]
    styles = method_styles(names)
    figure = Figure(figsize=(WIDTH, 2 * PANEL + LEGEND), layout="constrained")
    panels = figure.subplots(2, len(data_sets), squeeze=False, sharey="row")
    for data, (above, below) in zip(data_sets, panels.T, strict=True):
        sizes = sorted({run.batch_size for run in found if run.data == data})
        for name in names:
            cells = {size: cost(found, name, data, r.RANK, size) for size in sizes}
            known = [(size, cell.mean) for size, cell in cells.items() if cell]
            if known:
                above.plot(*zip(*known, strict=True), **styles[name])
            curve = r.mean_curve(r.at(curves, name, data, r.RANK, r.BATCH_SIZE), "seconds")
            if curve:
                n, seconds = list(curve), [cell.mean for cell in curve.values()]
                marks = {"markevery": max(len(n) // 6, 1)}
                below.plot(
                    [0, *(each / n[-1] for each in n)], [0, *(each / seconds[-1] for each in seconds)],
                    **styles[name], **marks,
                )  # fmt: skip
        above.set_xscale("log", base=2)
        above.set_yscale("log")
        above.set_xticks(sizes, [str(size) for size in sizes])
        above.minorticks_off()
        above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        above.yaxis.set_major_formatter(lambda cost, _: f"{cost:,g}")
        above.set_xlabel("batch size")
        name_panel(above, data)
        below.plot([0, 1], [0, 1], color="0.6", linewidth=1.0)
        for axis in (below.xaxis, below.yaxis):
            axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        below.set_xlabel("share of the stream learned")
        tidy(above)
        tidy(below)
    panels[0, 0].set_ylabel("µs per entry (log scale)")
    panels[1, 0].set_ylabel("share of the time spent")
    shared_legend(figure, styles, names)
    return figure


def sparsity(run: Run) -> Figure:
    """Inclusion probability of every weight, and the posterior means with and without the pruned ones."""
    import numpy as np
    from matplotlib.figure import Figure

    inclusion = [np.asarray(layer["inclusion"], float) for layer in run.weights]
    mean = [np.asarray(layer["mean"], float) for layer in run.weights]
    figure = Figure(figsize=(9.0, 6.2), layout="constrained")
    maps, counts = figure.subplots(2, len(inclusion), squeeze=False, height_ratios=[1.25, 1])
    image: Any = None
    for number, (axes, layer) in enumerate(zip(maps, inclusion, strict=True), 1):
        image = axes.imshow(layer, vmin=0, vmax=1, cmap="cividis", aspect="auto", interpolation="nearest")
        pruned = float((layer < PRUNED).mean())
        axes.set_title(f"layer {number}: {pruned:.0%} of {layer.size:,} pruned", fontsize="medium")
        axes.set_xlabel("input (last: bias)")
        axes.set_ylabel("unit")
        if len(layer) == 1:
            axes.set_yticks([0])
    figure.colorbar(image, ax=list(maps), label="inclusion probability", shrink=0.9)
    for axes, layer, included in zip(counts, mean, inclusion, strict=True):
        end = max(float(np.abs(layer).max()), 1e-6)
        bins = np.linspace(-end, end, BINS)
        axes.hist(layer.ravel(), bins, color="0.75", label="all weights")
        axes.hist(
            layer[included >= PRUNED],
            bins,
            color="#00588A",
            label="after pruning",
            histtype="step",
            linewidth=1.5,
        )
        axes.set_yscale("symlog", linthresh=1)
        axes.set_xlabel("posterior mean of a weight")
        axes.set_ylabel("weights (log scale)")
        tidy(axes)
    counts[0].legend(
        *counts[0].get_legend_handles_labels(), frameon=False, fontsize="small", loc="lower left",
        bbox_to_anchor=(0, 1.0), ncols=2,
    )  # fmt: skip
    return figure


def calibration(found: Sequence[Run]) -> Figure | None:
    """Calibration on the test set of Figure 1, with each method's lowest seed: bins differ between seeds."""
    from matplotlib.figure import Figure

    grid = r.figure_grid(found)
    plain, calibrated = (_curves_by_data(grid, key) for key in ("calibration", "calibrated"))
    curves = {data: each for data, each in plain.items() if each}
    if not curves:
        return None
    names = [name for name in r.names(grid) if any(name in each for each in curves.values())]
    styles = method_styles(names)
    figure = Figure(figsize=(WIDTH, 3.1 + LEGEND), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (data, points_by_method) in zip(panels, curves.items(), strict=True):
        curve = CURVES[r.metric(grid, data)]
        draw_reliability(axes, points_by_method, styles, curve, calibrated[data])
        name_panel(axes, f"{data}: {curve.what}")
    if any(calibrated.values()):
        hollow = "hollow: calibrated"
        styles[hollow] = {"color": "0.3", "marker": "o", "markersize": 5, **HOLLOW}
        names.append(hollow)
    shared_legend(figure, styles, names)
    return figure


def _curves_by_data(grid: Sequence[Run], key: str) -> dict[str, dict[str, Any]]:
    """The curves in the rows by data set and method, without those that contain NaN."""
    curves: dict[str, dict[str, Any]] = {}
    for data in r.data_sets(grid):
        curves[data] = {}
        for name in r.names(grid):
            chosen = r.at(grid, name, data, r.RANK, r.BATCH_SIZE)[:1]
            points = [run.scores["paper"].get(key) for run in chosen if "paper" in run.scores]
            if (
                points
                and points[0]
                and all(math.isfinite(r.number_of(x)) for pair in points[0] for x in pair)
            ):
                curves[data][name] = points[0]
    return curves


def members(found: Sequence[Run]) -> Figure | None:
    """The weights of a committee's models over the stream: lowest seed of each method in time order."""
    chosen = [
        run
        for run in r.results(found, "prequential")
        if run.rank == r.RANK
        and run.batch_size == r.BATCH_SIZE
        and len(run.curve) > 1
        and all(len(point.get("members") or ()) > 1 for point in run.curve)  # skip single models
    ]
    first: dict[tuple[str, str], Run] = {}
    for run in sorted(chosen, key=lambda run: run.seed):
        first.setdefault((run.name, run.data), run)
    if not first:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH if len(first) > 1 else WIDTH / 2, PANEL + LEGEND), layout="constrained")
    panels = figure.subplots(1, len(first), squeeze=False, sharey=True)[0]
    for axes, run in zip(panels, first.values(), strict=True):
        draw_members(axes, run.curve)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,g}")
        axes.set_xlabel("entries learned, thousands")
        name_panel(axes, f"{run.data}, {run.name}")
    panels[0].set_ylabel("weight")
    longest = max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[0]))
    handles, labels = longest.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure
