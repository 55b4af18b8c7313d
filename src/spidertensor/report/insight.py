"""Figures of what is behind the scores: time, weights, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.report import runs as r
from spidertensor.report.behaviour import PRUNED, microseconds
from spidertensor.report.draw import draw_reliability, method_styles, shared_legend, tidy
from spidertensor.report.runs import Cell, Run
from spidertensor.report.scores import LEGEND, PANEL, WIDTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 41  # of a histogram of weights


def timed(found: Sequence[Run]) -> list[Run]:
    return [run for run in found if run.experiment == "time" and run.scores]


def cost(found: Sequence[Run], name: str, data: str, rank: int, batch_size: int) -> Cell | None:
    """Microseconds per entry; a method that does not see the batch size, wherever it was timed."""
    return r.average(map(microseconds, r.at(found, name, data, rank, batch_size)))


def speed(found: Sequence[Run]) -> Figure | None:
    """Microseconds per entry as bars, one panel for each data set."""
    from matplotlib.figure import Figure

    found = timed(found)
    data_sets, names = r.data_sets(found), r.names(found)
    bars = {
        data: [(name, cell) for name in names if (cell := cost(found, name, data, r.RANK, r.BATCH_SIZE))]
        for data in data_sets
    }
    bars = {data: each for data, each in bars.items() if each}
    if not bars:
        return None
    styles = method_styles(names)
    longest = max(map(len, bars.values()))
    rows = -(-len(bars) // 2)
    figure = Figure(figsize=(WIDTH, rows * (0.9 + 0.24 * longest)), layout="constrained")
    panels = figure.subplots(rows, min(len(bars), 2), squeeze=False, sharex=True)
    most = max(cell.mean for each in bars.values() for _, cell in each)
    for axes in panels.flat[len(bars) :]:
        axes.set_visible(False)
    for axes, (data, each) in zip(panels.flat, bars.items(), strict=False):
        shown = list(reversed(each))
        means = [cell.mean for _, cell in shown]
        drawn = axes.barh(range(len(shown)), means, color=[styles[name]["color"] for name, _ in shown])
        axes.bar_label(
            drawn,
            [f"{mean:.3g}" if mean < 100 else f"{mean:,.0f}" for mean in means],
            padding=3,
            fontsize="small",
        )
        axes.set_yticks(range(len(shown)), [name for name, _ in shown])
        axes.set_xscale("log")
        axes.set_xlim(right=8 * most)  # room for the figures
        axes.set_xlabel("µs per entry (log scale, lower is better)")
        axes.tick_params(labelbottom=True)
        axes.set_title(data, fontsize="medium", loc="left", fontweight="bold")
        tidy(axes)
        axes.grid(visible=False, axis="y")
    return figure


def scaling(found: Sequence[Run]) -> Figure | None:
    """Cost of an entry over the batch size, and share of the time over share of the stream."""
    from matplotlib.figure import Figure

    found = [run for run in timed(found) if run.rank == r.RANK and run.method not in (*r.STATIC, *r.FLOORS)]
    data_sets, names = r.data_sets(found), r.names(found)
    if not data_sets:
        return None
    styles = method_styles(names)
    figure = Figure(figsize=(WIDTH, PANEL * len(data_sets) + LEGEND), layout="constrained")
    for data, (left, right) in zip(data_sets, figure.subplots(len(data_sets), 2, squeeze=False), strict=True):
        sizes = sorted({run.batch_size for run in found if run.data == data})
        for name in names:
            cells = {size: cost(found, name, data, r.RANK, size) for size in sizes}
            known = [(size, cell.mean) for size, cell in cells.items() if cell]
            if known:
                left.plot(*zip(*known, strict=True), **styles[name])
            group = [run for run in r.at(found, name, data, r.RANK, r.BATCH_SIZE) if len(run.curve) > 1]
            curve = r.mean_curve(group, "seconds")
            if curve:
                n, seconds = list(curve), [cell.mean for cell in curve.values()]
                marks = {"markevery": max(len(n) // 6, 1)}
                right.plot(
                    [0, *(each / n[-1] for each in n)], [0, *(each / seconds[-1] for each in seconds)],
                    **styles[name], **marks,
                )  # fmt: skip
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        left.set_xticks(sizes, [str(size) for size in sizes])
        left.set_xlabel("batch size")
        left.set_ylabel("µs per entry\n(log scale)")
        left.set_title(
            f"{data}: flat is linear in the batch", fontsize="medium", loc="left", fontweight="bold"
        )
        right.plot([0, 1], [0, 1], color="0.6", linewidth=1.0)
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        right.set_xlabel("share of the stream learned")
        right.set_ylabel("share of the time spent")
        right.set_title("on the diagonal: constant cost", fontsize="medium", loc="left", fontweight="bold")
        tidy(left)
        tidy(right)
    shared_legend(figure, styles, names)
    return figure


def sparsity(run: Run) -> Figure:
    """Inclusion probability of every weight, and the posterior means with and without the pruned ones."""
    import numpy as np
    from matplotlib.figure import Figure

    inclusion = [np.asarray(layer["inclusion"], float) for layer in run.weights]
    mean = [np.asarray(layer["mean"], float) for layer in run.weights]
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
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
    """On the published test set, lowest seed of each method: bins of probability differ from seed to seed."""
    from matplotlib.figure import Figure

    grid = r.grid(found)
    curves: dict[str, dict[str, Any]] = {}
    for data in r.data_sets(grid):
        for name in r.names(grid):
            chosen = r.at(grid, name, data, r.RANK, r.BATCH_SIZE)[:1]
            points = [run.scores["paper"].get("calibration") for run in chosen if "paper" in run.scores]
            if (
                points
                and points[0]
                and all(math.isfinite(r.number_of(each)) for pair in points[0] for each in pair)
            ):
                curves.setdefault(data, {})[name] = points[0]
    if not curves:
        return None
    names = [name for name in r.names(grid) if any(name in each for each in curves.values())]
    styles = method_styles(names)
    rows = -(-len(curves) // 2)
    figure = Figure(figsize=(WIDTH, 3.4 * rows + LEGEND), layout="constrained")
    panels = figure.subplots(rows, min(len(curves), 2), squeeze=False)
    for axes in panels.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (data, points_by_method) in zip(panels.flat, curves.items(), strict=False):
        binary = r.metric(grid, data) == "auc"
        draw_reliability(axes, points_by_method, styles, binary=binary)
        kind = "probabilities" if binary else "intervals"
        axes.set_title(f"{data}: {kind}", fontsize="medium", loc="left", fontweight="bold")
    shared_legend(figure, styles, names)
    return figure
