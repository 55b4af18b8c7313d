"""The page: which figures and tables it has, in which order, and what is said about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spidertensor.report import html, insight, scores, tables
from spidertensor.report import runs as r
from spidertensor.report.behaviour import PRUNED
from spidertensor.report.claims import claims
from spidertensor.report.runs import Run
from spidertensor.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 130
USUAL = f"at rank {r.RANK}, batch size {r.BATCH_SIZE}"
OFF_SCALE = (
    "The vertical range is chosen so that a method that fails does not squash the others: one that lies "
    "outside of it is named above with its scores."
)


class Picture(NamedTuple):
    """A figure, None if nothing was run for it; the name of its file and what is said below it."""

    name: str
    caption: str
    figure: Figure | None


class Section(NamedTuple):
    anchor: str
    title: str
    text: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()


def write(rows: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write report.html and a PNG for every figure to the folder `out`; returns the paths, the page first."""
    found = r.runs(rows)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "report.html"]
    parts = [html.header(rows), html.claims(claims(found))]
    for section in (*_figures(found), *_tables(found)):
        shown = []
        for name, caption, figure in section.pictures:
            if figure:
                png = _png(figure)
                paths.append(out / f"{name}.png")
                paths[-1].write_bytes(png)
                shown.append(html.figure(name, caption, png))
        shown += [html.table(table) for table in section.tables]
        parts.append(html.section(section.anchor, section.title, section.text, shown))
    paths[0].write_text(html.page(parts), encoding="utf-8")
    return paths


def _figures(found: Sequence[Run]) -> Iterator[Section]:
    text = (
        "Held-out scores after one pass, on the published test sets: RMSE for continuous values, AUC for "
        "binary ones. CP-WOPT and the static biases see all entries at once and as often as they like."
    )
    caption = (
        "Mean over the seeds; bars are one standard deviation, none with one seed; thin grey lines are "
        f"floors. {OFF_SCALE}"
    )
    pictures = [Picture("figure-1", caption, scores.over_grid(found))]
    yield Section("grid", "Figure 1: scores over rank and batch size", text, pictures)

    text = (
        f"Score of the published test set while the stream is learned, batch size {r.BATCH_SIZE}, streaming "
        "methods only."
    )
    caption = f"Mean over the seeds; bands are one standard deviation. {OFF_SCALE}"
    pictures = [Picture("figure-2", caption, scores.on_the_fly(found))]
    yield Section("running", "Figure 2: scores on the fly", text, pictures)

    text = "Seconds spent in learning, without compiling and scoring, timed apart from the grid."
    caption = (
        "Left: a flat line is a cost linear in the batch size. Right: cumulative seconds over entries, both "
        "as shares of the whole; a method on the diagonal pays the same for every entry, however much it has "
        "seen."
    )
    pictures = [
        Picture("time", f"Cost of an entry {USUAL}.", insight.speed(found)),
        Picture("scaling", caption, insight.scaling(found)),
    ]
    yield Section("time", "Running time", text, pictures, tables.times(found))

    text = (
        "Above, the inclusion probability of every weight after the stream. Below, the posterior means of "
        f"all weights, and of those left when weights with a probability below {PRUNED} are pruned."
    )
    yield Section("weights", "Sparse posterior of the weights", text, _weights(found))

    text = (
        f"On the published test sets {USUAL}: the nearer the diagonal the better. Half of the training "
        "entries of acc and dblp are non-zeros but a tenth of the test entries, and these curves show that "
        "shift too."
    )
    caption = (
        "Continuous values: share of values inside an interval. Binary values: share of ones. Lowest seed of "
        "each method."
    )
    pictures = [Picture("calibration", caption, insight.calibration(found))]
    yield Section("calibration", "Calibration", text, pictures)

    text = "Nothing is held out: an entry is scored by what was predicted just before it was learned."
    caption = (
        "Score of each window of the stream, mean over the seeds; bands are one standard deviation. "
        f"{OFF_SCALE}"
    )
    pictures = [Picture("prequential", caption, scores.in_time_order(found))]
    title = "In time order: each entry predicted, then learned"
    yield Section("prequential", title, text, pictures, tables.prequential(found))


def _tables(found: Sequence[Run]) -> Iterator[Section]:
    text = (
        "The published test zeros of acc and dblp use only a part of one mode, which gives them away. The "
        "clean tests have the same non-zeros, and zeros drawn uniformly."
    )
    yield Section("tests", "Published and clean test sets", text, tables=tables.two_tests(found))

    text = (
        "A second-order expansion, and quadrature for the noise, against the first-order expansion of the "
        "paper, on small streams."
    )
    title = "Other approximations in the inference"
    yield Section("approximations", title, text, tables=tables.approximations(found))

    text = (
        "Mean ± standard deviation over the seeds, and how many there were; the best of a column is marked. "
        "A floor depends neither on rank nor on batch size, CP-WOPT not on the batch size: their runs stand "
        "in every table."
    )
    yield Section("tables", "All scores", text, tables=tables.scores(found))

    text = (
        f"All {USUAL}. CP-WOPT and the static biases are least squares: their variance is that of the "
        "residuals of the training entries."
    )
    yield Section("details", "Log density, intervals, probabilities", text, tables=tables.details(found))


def _weights(found: Sequence[Run]) -> list[Picture]:
    """One figure for each method and data set, of its lowest seed."""
    first: dict[tuple[str, str], Run] = {}
    for run in sorted((run for run in found if run.weights), key=lambda run: run.seed):
        first.setdefault((run.name, run.data), run)
    return [
        Picture(
            f"weights-{number}",
            f"{run.name} on {run.data}, rank {run.rank}, batch size {run.batch_size}, seed {run.seed}.",
            insight.sparsity(run),
        )
        for number, run in enumerate(first.values(), 1)
    ]


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()
