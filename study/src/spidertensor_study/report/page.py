"""The page: its figures and tables, their order, and the text about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spidertensor_study.report import html, insight, markdown, scores, standing, tables
from spidertensor_study.report import runs as r
from spidertensor_study.report.behaviour import PRUNED
from spidertensor_study.report.claims import claims
from spidertensor_study.report.costs import COSTS
from spidertensor_study.report.runs import Run
from spidertensor_study.report.tables import Table
from spidertensor_study.report.verdicts import RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 120
USUAL = f"at rank {r.RANK}, batch size {r.BATCH_SIZE}"
OFF_SCALE = (
    "The vertical range is set by the methods that work: one that is hardly better than the mean, or far "
    "behind all others, is named above as off scale, with its scores."
)
JUDGED = f"{RULE} {COSTS}"
CUT_SHORT = "These runs were cut short: their verdicts show how the page looks, and nothing else."
CLAIMS = ("claims", "What the paper claims, what we found")


class Picture(NamedTuple):
    """A figure, None if nothing was run for it, with the name of its file and the text below it."""

    name: str
    shows: str  # alternative text
    caption: str
    figure: Figure | None


class Section(NamedTuple):
    anchor: str
    title: str
    text: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()


def write(rows: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write report.html, claims.md if there are claims, and a PNG per figure to `out`; return their paths."""
    found = r.runs(rows)
    judged = claims(found, r.failed(rows))
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "report.html"]
    sections = [*_figures(found), *_tables(found)]
    shown_sections = [
        each for each in sections if each.tables or any(picture.figure for picture in each.pictures)
    ]
    titles = [(section.anchor, section.title) for section in shown_sections]
    parts = [html.header(rows)]
    if any(claim.checks for claim in judged):  # otherwise nothing was run that the paper is about
        paths.append(out / "claims.md")
        paths[1].write_text(markdown.claims(CLAIMS[1], JUDGED, r.cut_short(rows), judged), encoding="utf-8")
        text = CUT_SHORT if r.cut_short(rows) else "Every verdict is computed from the runs."
        parts += [html.contents([CLAIMS, *titles]), html.claims(*CLAIMS, text, JUDGED, judged, dict(titles))]
    else:
        parts.append(html.contents(titles))
    for section in shown_sections:
        shown = []
        for name, shows, caption, figure in section.pictures:
            if figure:
                png = _png(figure)
                paths.append(out / f"{name}.png")
                paths[-1].write_bytes(png)
                shown.append(html.figure(shows, caption, png))
        shown += [html.table(table) for table in section.tables]
        parts.append(html.section(section.anchor, section.title, section.text, shown))
    parts.append(html.not_run([section.title for section in sections if section not in shown_sections]))
    paths[0].write_text(html.page(parts), encoding="utf-8")
    return paths


def _figures(found: Sequence[Run]) -> Iterator[Section]:
    text = f"Held-out scores after one pass, {USUAL}, and what an entry costs."
    caption = (
        "Mean over the seeds; bars are one standard deviation. A number at the edge is a score that is off "
        "the scale. Costs were timed apart, and are means over the data sets."
    )
    shows = "A line for each method with its score on each data set and its cost per entry"
    pictures = [Picture("standing", shows, caption, standing.standing(found))]
    yield Section("standing", "Where the methods stand", text, pictures)

    text = (
        "Held-out scores after one pass: RMSE for continuous values, AUC for binary ones. "
        f"{r.listed(r.STATIC)} see all entries at once and as often as they like. The test sets of acc and "
        "dblp are the published ones, of the others a random tenth, another one for each seed. Where the "
        "paper's four data sets were run, the figures are about these, and others are in the tables."
    )
    caption = (
        "Left: over the rank. Right: over the batch size; methods that do not see it are lines across. Those "
        "run at one rank, or one batch size, are not in that panel. Mean "
        "over the seeds; bars are one standard deviation, none with one seed; thin grey lines are floors. "
        "The points of one rank or batch size stand a little beside each other, so that all can be seen. "
        f"{OFF_SCALE}"
    )
    shows = "Lines of the score of every method over rank and over batch size, a column for each data set"
    pictures = [Picture("figure-1", shows, caption, scores.over_grid(found))]
    yield Section("grid", "Figure 1: scores over rank and batch size", text, pictures)

    text = (
        f"Score of the test set while the stream is learned, batch size {r.BATCH_SIZE}, streaming "
        "methods only."
    )
    caption = (
        "Mean over the seeds; bands are one standard deviation. The range leaves out the start of the "
        f"curves, where every method is far from where it ends. {OFF_SCALE}"
    )
    shows = (
        "Running score of every streaming method over the entries learned, for each data set and two ranks"
    )
    pictures = [Picture("figure-2", shows, caption, scores.on_the_fly(found))]
    yield Section("running", "Figure 2: scores on the fly", text, pictures)

    text = "Seconds spent in learning, without compiling and scoring, timed apart from the grid."
    caption = (
        "Above: a flat line is a cost linear in the batch size. Below: cumulative seconds over entries, both "
        "as shares of the whole; a method on the diagonal pays the same for every entry, however much it has "
        "seen."
    )
    bars = "Bars of the microseconds that each method spends on an entry, a panel for each data set"
    lines = "Microseconds per entry over the batch size, and share of the time over share of the stream"
    pictures = [
        Picture("time", bars, f"Cost of an entry {USUAL}.", insight.speed(found)),
        Picture("scaling", lines, caption, insight.scaling(found)),
    ]
    yield Section("time", "Running time", text, pictures, tables.times(found))

    text = (
        "Above, the inclusion probability of every weight after the stream. Below, the posterior means of "
        f"all weights, and of those left when weights with a probability below {PRUNED} are pruned."
    )
    yield Section("weights", "Sparse posterior of the weights", text, _weights(found))

    text = (
        f"On the test sets of Figure 1, {USUAL}: the nearer the diagonal the better. Half of the training "
        "entries of acc and dblp are non-zeros but a tenth of the test entries, and these curves show that "
        "shift too."
    )
    caption = (
        "Continuous values: share of values inside an interval; hollow markers are calibrated intervals, "
        "where a method has them. Binary values: share of ones. Lowest seed of each method."
    )
    shows = "Calibration curves of every method beside the diagonal, a panel for each data set"
    pictures = [Picture("calibration", shows, caption, insight.calibration(found))]
    yield Section("calibration", "Calibration", text, pictures)

    text = "Nothing is held out: an entry is scored by what was predicted just before it was learned."
    caption = (
        "Score of each window of the stream, mean over the seeds; bands are one standard deviation. The "
        f"range leaves out the start of the curves. {OFF_SCALE}"
    )
    shows = "Score of each window of the stream for every method, a panel for each data set"
    pictures = [
        Picture("prequential", shows, caption, scores.in_time_order(found)),
        Picture(
            "members",
            "Areas of the weights of a committee's models over the stream, a panel for each data set",
            "What each model of a committee counts in its prediction, after so many entries. Lowest seed.",
            insight.members(found),
        ),
    ]
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
        "The sequential engine learns entry by entry, the vectorized one a batch as a whole. In time order "
        "what is scored is the prediction just before an entry was learned, and inside a batch that lags."
    )
    yield Section("engines", "Two engines", text, tables=tables.engines(found))

    text = (
        "Mean ± standard deviation over the seeds, and how many there were; the best of a column is marked. "
        f"The rank changes nothing for {r.listed(r.RANK_FREE)}, the batch size nothing for "
        f"{r.listed(r.BATCH_FREE)}: their runs stand in every table. Numbers per node are all that a method "
        "keeps of a node: means, variances or covariances, noise."
    )
    yield Section("tables", "All scores", text, tables=tables.scores(found))

    text = (
        "At rank 8 the default keeps many more numbers of a node than its rivals. Here rivals have rank 40, "
        "and ours a few numbers."
    )
    yield Section("capacity", "Scores at other sizes", text, tables=tables.capacity(found))

    text = (
        "CP-WOPT descends from random starts. All other tables have the best of three by the loss that it "
        "minimises; these have the first of them."
    )
    yield Section("starts", "CP-WOPT from one start", text, tables=tables.starts(found))

    text = (
        f"All {USUAL}. CP-WOPT, CoSTCo and static biases have no posterior: their variance is that of "
        "residuals, of entries that were held back where some are, else of the training entries."
    )
    yield Section("details", "Log density, intervals, probabilities", text, tables=tables.details(found))

    text = (
        "An entry with an absurd value, or a batch after which a number would not be finite, is refused: it "
        "is not learned, and its entries are counted. These are the runs, of all experiments, where that "
        "happened often. Rows of SPIDER from before version 0.2 count single numbers of the posterior that "
        "were not changed, because a variance would not have stayed positive."
    )
    yield Section("rejected", "Runs with rejected entries", text, tables=tables.rejected(found))

    text = "The methods that learn a batch by gradient steps have a learning rate, tuned for each data set."
    yield Section("tuning", "Tuned learning rates", text, tables=tables.tuning(found))


def _weights(found: Sequence[Run]) -> list[Picture]:
    """One figure for each method and data set, with the lowest seed."""
    first: dict[tuple[str, str], Run] = {}
    for run in sorted((run for run in found if run.weights), key=lambda run: run.seed):
        first.setdefault((run.name, run.data), run)
    return [
        Picture(
            f"weights-{number}",
            f"Heat maps of inclusion probabilities and histograms of weights, {run.name} on {run.data}",
            f"{run.name} on {run.data}, rank {run.rank}, batch size {run.batch_size}, seed {run.seed}"
            + (f", first {run.settings['entries']:,} entries only." if run.settings.get("entries") else "."),
            insight.sparsity(run),
        )
        for number, run in enumerate(first.values(), 1)
    ]


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()
