"""The demo: SPIDER and the floors learn a year of flights in one pass, in well under a minute.

(carrier, origin, destination, plane, hour) -> arrival delay, every flight predicted before it is learned;
once more with what is known of a flight beside these ids.
Leaves a picture and a model file, and suggests three commands. Uses a synthetic stream if the flights are not
installed, and draws no picture without matplotlib.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from spidertensor.demo import described_flights, flights, load
from spidertensor.estimator import SpiderRegressor
from spidertensor.evaluation import floors
from spidertensor.evaluation.dataset import Dataset, DatasetError
from spidertensor.evaluation.draw import overview
from spidertensor.evaluation.methods import METHODS
from spidertensor.evaluation.protocols import Row, prequential
from spidertensor.method import Bags, Batch, Method, Prediction, Update, check_index
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor.writing import naming

N_ROWS = 50  # over the stream: a window is about a week of flights
BATCH_SIZE = 1024  # entries per call; does not change the result
N_EXTREMES = 3  # widest and narrowest predictions shown
SCORES = ("last\nwindow", "log\nevidence", "50 %\ncovers", "90 %\ncovers")  # columns after the RMSE

SHORT = {"bias_var": "bias var", "multilinear_var": "pair var"}  # legend names of prior variances

SPIDER = "SPIDER"  # the default estimator: METHODS["spider"] on raw ids
ATTRIBUTES = "with attributes"  # the same with what is known of a flight beside its ids

Rows = dict[str, Row]  # by method, at the same point of the stream


class Words(NamedTuple):
    """Wording for a stream on screen and in the picture."""

    entries: str
    unit: str
    about: str
    coverage: str


FLIGHTS = Words(
    "flights",
    "minutes",
    "Flights out of New York in 2013, in scheduled order: (carrier, origin, destination, plane, hour) -> "
    "arrival delay, clipped to -60..180 minutes. A delay is learned before the next scheduled flight is "
    "predicted, although that plane may not have landed yet.",
    "Delays have a long tail, longer on some days than on others. A Gaussian wide enough for it is too wide "
    "for the rest, so over the year its 50 % intervals cover more than 50 %. Calibrated intervals follow the "
    "errors of recent flights, and over the year they cover what they should.",
)
SYNTHETIC = Words(
    "entries",
    "",
    "A random network over random factors, with noise of standard deviation 0.3.",
    "The noise is Gaussian, so 50 % intervals should cover 50 %. Over the whole stream, SPIDER's plain "
    "intervals are slightly too wide; the calibrated ones are not.",
)


def run(console: Console, out: Path, entries: int | None = None) -> None:
    """Print the demo to `console` and leave NAME.png and NAME.spider in the folder `out`.

    entries: number of entries to learn; all by default
    """
    dataset, words = _dataset(console)
    whole = dataset.in_time_order()
    stream = Batch(whole.index[:entries], whole.value[:entries])
    out.mkdir(parents=True, exist_ok=True)
    console.print(words.about)
    models: list[SpiderRegressor] = []
    spider = _spider(dataset, models)
    racers = {
        SPIDER: spider,
        **({ATTRIBUTES: _with_attributes(dataset)} if dataset.name == flights.INFO.name else {}),
        METHODS["biases"].label: floors.biases(len(dataset.modes), GAUSSIAN),
        METHODS["mean"].label: floors.mean(GAUSSIAN),
    }
    history = []
    for rows in _watched(console, racers, stream, words):
        # The passes run in step, so this is the model at that row. The evaluation sees an estimator instead
        # of a committee, so member weights are added here.
        rows[SPIDER]["members"] = [member.weight for member in models[-1].members_]
        history.append(rows)
    model = models[-1]
    _print_sum(console, history[-1][SPIDER], model, words)
    if ATTRIBUTES in racers:
        _print_gain(console, history[-1])
    _print_leader(console, model)
    console.print(_extremes(dataset, stream, partial(spider.predict, model), words))
    _save_picture(console, out / f"{dataset.name}.png", history, model, words)
    path = out / f"{dataset.name}.spider"
    model.save(path)
    _print_line(console, f"Model:   {path}")
    _print_next(console, path, dataset, stream)


def _dataset(console: Console) -> tuple[Dataset, Words]:
    try:
        return load("flights"), FLIGHTS
    except DatasetError:
        _print_line(
            console,
            "The flights are not installed, so this is a synthetic stream. To get them: "
            "pip install 'spidertensor[demo]' (`spider evaluate flights` shows what is wrong).",
        )
        return load("synthetic"), SYNTHETIC


def _spider(dataset: Dataset, models: list[SpiderRegressor]) -> Method:
    """The estimator as a Method, fed with raw ids so that the saved model knows them.

    `init` appends each model to `models`. The evaluation creates two: the first only to compile, the
    last to learn the stream.
    """

    def init(seed: int) -> SpiderRegressor:
        models.append(SpiderRegressor(random_state=seed))
        return models[-1]

    def update(model: SpiderRegressor, batch: Batch) -> tuple[SpiderRegressor, Update]:
        return model, model.learn(_raw_ids(dataset, batch.index), batch.value)

    def predict(model: SpiderRegressor, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, len(dataset.modes), bags)
        return model.predict_parts(_raw_ids(dataset, index))

    return Method(init, update, predict)


def _with_attributes(dataset: Dataset) -> Method:
    """The estimator with attributes. It learns the flights in their order, so it knows the row of each."""
    table = {name: column for name, column in described_flights().items() if name not in ("delay", "landed")}

    def init(seed: int) -> SpiderRegressor:
        return SpiderRegressor(modes=flights.ATTRIBUTES, random_state=seed)

    def update(model: SpiderRegressor, batch: Batch) -> tuple[SpiderRegressor, Update]:
        first = model.n_entries_ if model.__sklearn_is_fitted__() else 0
        rows = slice(first, first + len(batch.value))
        return model, model.learn({name: column[rows] for name, column in table.items()}, batch.value)

    def predict(model: SpiderRegressor, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, len(dataset.modes), bags)
        return model.predict_parts(_raw_ids(dataset, index))

    return Method(init, update, predict)


def _raw_ids(dataset: Dataset, index: NDArray[np.integer]) -> pa.Table:
    """Raw ids of entries; synthetic nodes have no labels, so their numbers are the ids."""
    columns = dict(zip(dataset.modes, index.T, strict=True))
    if dataset.labels:
        labels = zip(columns.items(), dataset.labels, strict=True)
        columns = {mode: label[row] for (mode, row), label in labels}
    return pa.table(columns)


def _watched(console: Console, racers: dict[str, Method], stream: Batch, words: Words) -> Iterator[Rows]:
    """Yield the rows of all racers, shown in a live table, or as a line per tenth of the stream."""
    n = len(stream.value)
    passes = [
        prequential(racer, stream, likelihood=GAUSSIAN, batch_size=BATCH_SIZE, at=N_ROWS)
        for racer in racers.values()
    ]
    groups = (dict(zip(racers, group, strict=True)) for group in zip(*passes, strict=True))
    starting = "Starting; the first run on a machine compiles for ten to twenty seconds ..."
    with console.status(starting) if console.is_interactive else nullcontext():
        rows = first = next(groups)
    tenths = 1  # printed so far; the first tenth is not scored
    with Live(console=console, auto_refresh=False) if console.is_interactive else nullcontext() as live:
        for rows in chain([first], groups):
            learned = rows[SPIDER]["n_entries"]
            if live:
                live.update(_table(rows, n, words), refresh=True)
            elif 10 * learned // n > tenths:
                tenths = 10 * learned // n
                scores = ", ".join(f"{name} {row['score']:.4g}" for name, row in rows.items())
                _print_line(console, f"{learned:,} of {n:,} {words.entries}: RMSE {scores}")
            yield rows
    if not live:
        console.print(_table(rows, n, words))


def _table(rows: Rows, n: int, words: Words) -> Table:
    speed = f"SPIDER learns {rows[SPIDER]['entries_per_second']:,.0f} per second, including id lookup"
    title = f"{rows[SPIDER]['n_entries']:,} of {n:,} {words.entries}\n{speed}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("", _with_unit("RMSE", words), *SCORES):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, row in rows.items():
        scores = (row["score"], row["window_score"], row["log_density"])
        table.add_row(name, *(_or_dash(f"{score:.4g}") for score in scores), *_shares(row, "coverage"))
        if row["calibrated_50"] is not None:
            table.add_row("  calibrated", *("" for _ in scores), *_shares(row, "calibrated"))
    return table


def _shares(row: Row, kind: str) -> list[str]:
    return [_or_dash(f"{100 * row[f'{kind}_{percent}']:.1f} %") for percent in (50, 90)]


def _or_dash(cell: str) -> str:
    return "-" if "nan" in cell else cell  # nothing scored yet


def _with_unit(column: str, words: Words) -> str:
    return f"{column},\n{words.unit}" if words.unit else column


def _print_sum(console: Console, row: Row, model: SpiderRegressor, words: Words) -> None:
    nodes = " x ".join(f"{n:,}" for n in model.n_nodes_)
    sentences = (
        f"The first tenth of the stream, {row['skipped']:,} {words.entries}, is not scored.",
        f"Log evidence is the mean per entry; SPIDER's total over the stream is {model.log_evidence_:,.0f}.",
        words.coverage,
        f"Learning took {row['seconds']:.2f} seconds and found {nodes} nodes.",
    )
    console.print(" ".join(sentences), highlight=False)


def _print_gain(console: Console, rows: Rows) -> None:
    ids, described = (rows[name]["score"] for name in (SPIDER, ATTRIBUTES))
    line = (
        "With attributes beside the ids (the plane's year, maker, model, seats and engine, the distance, the "
        "calendar, and the weather at the scheduled hour) the error is"
    )
    console.print(f"{line} {described:.2f} instead of {ids:.2f} minutes.", highlight=False)


def _print_leader(console: Console, model: SpiderRegressor) -> None:
    members = model.members_
    leader = max(members, key=lambda member: member.weight)
    name = _member_names(model)[members.index(leader)]
    line = f"Of the {len(members)} committee members, the one with {name} leads, "
    console.print(f"{line}with a weight of {100 * leader.weight:.0f} %.", highlight=False)


def _member_names(model: SpiderRegressor) -> list[str]:
    """Settings in which members differ, such as "bias var 0.1, pair var 0.1, memory 1,000"."""
    members, settings = model.members_, model.settings_
    differ = dict.fromkeys(name for member in members for name in member.own)
    names = []
    for member in members:
        own = {name: (settings | member.own)[name] for name in differ}
        parts = [f"{SHORT.get(name, name)} {value:,g}" for name, value in own.items() if value is not None]
        names.append(", ".join(parts))
    return names


def _extremes(
    dataset: Dataset, stream: Batch, prediction: Callable[[Any], Prediction], words: Words
) -> Table:
    """Current predictions for seen entries, where the model is least and most certain."""
    seen = np.unique(np.ravel_multi_index(tuple(stream.index.T), dataset.shape))
    index = np.stack(np.unravel_index(seen, dataset.shape), axis=1)
    mean, var, noise = prediction(index)
    order = np.argsort(var)
    title = "The widest and narrowest predictions of the current model"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in (*dataset.modes, _with_unit("expected", words), "one\nobservation"):
        table.add_column(column, justify="left" if column in dataset.modes else "right", no_wrap=True)
    for which in (order[: -N_EXTREMES - 1 : -1], order[:N_EXTREMES]):
        table.add_section()
        for entry, ids in zip(which, _raw_ids(dataset, index[which]).to_pylist(), strict=True):
            std, of_one = np.sqrt(var[entry]), np.sqrt(var[entry] + noise[entry])
            table.add_row(*map(str, ids.values()), f"{mean[entry]:.2f} ± {std:.2f}", f"± {of_one:.2f}")
    return table


def _save_picture(
    console: Console, path: Path, history: list[Rows], model: SpiderRegressor, words: Words
) -> None:
    rows_by_method = {name: [rows[name] for rows in history] for name in history[0]}
    names = _member_names(model)
    try:
        figure = overview(rows_by_method, entries=words.entries, unit=words.unit, members=names)
    except ModuleNotFoundError:
        _print_line(console, "Picture: none; needs matplotlib: pip install 'spidertensor[plot]'")
        return
    with naming(path):
        figure.savefig(path, dpi=150)
    _print_line(console, f"Picture: {path}")


def _print_next(console: Console, path: Path, dataset: Dataset, stream: Batch) -> None:
    ids = _raw_ids(dataset, stream.index[-1:]).to_pylist()[0]
    over = dataset.modes[-1]
    given = " ".join(f"--given {mode}={shlex.quote(str(ids[mode]))}" for mode in dataset.modes[:-1])
    model = shlex.quote(str(path))
    console.print("Three commands to try next (recommend ranks the highest expected value first):")
    _print_line(console, f"  spider info {model}")
    _print_line(console, f"  spider recommend {model} {given} --over {over} -n 5")
    _print_line(console, f"  spider evaluate {dataset.name} --protocol prequential")


def _print_line(console: Console, line: str) -> None:
    """Print without wrapping, and without reading markup in paths."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)
