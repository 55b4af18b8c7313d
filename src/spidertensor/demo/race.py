"""The demo: SPIDER and the floors learn a year of flights in one pass, in a minute or two.

(carrier, origin, destination, plane, hour), and what else is known of a flight -> arrival delay. Every flight
is predicted when it is scheduled to depart, and learned when it has landed (evaluation/clock.py).
Leaves a picture and a model file, and suggests three commands. Uses a synthetic stream if the flights are not
installed, and draws no picture without matplotlib.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from spidertensor.demo import clock as clock_of
from spidertensor.demo import described_flights, flights, load
from spidertensor.estimator import SpiderRegressor
from spidertensor.estimator.columns import Schema
from spidertensor.evaluation import floors
from spidertensor.evaluation.clock import Clock, honest_clock
from spidertensor.evaluation.dataset import Dataset, DatasetError
from spidertensor.evaluation.draw import overview
from spidertensor.evaluation.methods import METHODS
from spidertensor.evaluation.protocols import Row
from spidertensor.evaluation.with_attributes import of_estimator, of_ids
from spidertensor.method import Batch, Method, Prediction
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor.writing import naming

N_ROWS = 50  # over the stream: a window is about a week of flights
N_LATEST = 5000  # entries to choose the extremes from
N_EXTREMES = 3  # widest and narrowest predictions shown
SCORES = ("last\nwindow", "log\nevidence", "50 %\ncovers", "90 %\ncovers")  # columns after the RMSE

SHORT = {
    "bias_var": "bias var",
    "multilinear_var": "pair var",
    "multilinear": "pairs",
    "node_noise": "noise per node",
}

SPIDER = "SPIDER"  # the default estimator
IDS_ONLY = "ids only"  # the same without what is known of a flight beside its ids

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
    "Flights out of New York in 2013: carrier, origin, destination, plane, hour, and what is known of them "
    "(the plane's year, maker, model, seats and engine, the distance, the calendar, the weather) -> arrival "
    "delay, clipped to -60..180 minutes. Each hour's flights are predicted at its beginning. A delay is "
    "learned when the plane has landed.",
    "Delays have a long tail, longer on some days than on others. A Gaussian wide enough for it is too wide "
    "for the rest, so over the year its 50 % intervals cover more than 50 %. Calibrated intervals follow the "
    "errors of recent forecasts.",
)
SYNTHETIC = Words(
    "entries",
    "",
    "A random network over random factors, with noise of standard deviation 0.3. A value is learned 100 "
    "entries after it was predicted.",
    "The noise is Gaussian, so 50 % intervals should cover 50 %. Over the whole stream, SPIDER's plain "
    "intervals are slightly too wide; the calibrated ones are not.",
)


def run(console: Console, out: Path, entries: int | None = None) -> None:
    """Print the demo to `console` and leave NAME.png and NAME.spider in the folder `out`.

    entries: number of entries to learn; all by default
    """
    dataset, words = _dataset(console)
    stream, clock = _stream(dataset, entries)
    out.mkdir(parents=True, exist_ok=True)
    console.print(words.about)
    models: list[SpiderRegressor] = []
    racers, history = _racers(dataset, models), []
    history.extend(_watched(console, racers, stream, clock, words))
    model = models[0]
    _print_sum(console, history[-1][SPIDER], model, words, clock)
    _print_leader(console, model)
    latest = stream.index[-N_LATEST:]
    console.print(_extremes(dataset, latest, racers[SPIDER].predict(model, latest), words))
    _save_picture(console, out / f"{dataset.name}.png", history, words)
    path = out / f"{dataset.name}.spider"
    model.save(path)
    _print_line(console, f"Model:   {path}")
    _print_next(console, path, dataset, latest[-1])


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


def _stream(dataset: Dataset, entries: int | None) -> tuple[Batch, Clock]:
    """The entries in the order of time, their rows in the last column of the index; and their clock."""
    whole = dataset.in_time_order()
    index = np.column_stack([whole.index, np.arange(len(whole.value))])
    clock = clock_of(dataset)
    clock = clock._replace(asked=clock.asked[:entries], known=clock.known[:entries])
    return Batch(index[:entries], whole.value[:entries]), clock


def _racers(dataset: Dataset, models: list[SpiderRegressor]) -> dict[str, Method]:
    """All methods by name. The first appends its model to `models`."""
    ids, n_modes = _raw_ids(dataset), len(dataset.modes)
    without = Schema.parse({mode: [] for mode in dataset.modes})
    spider, described = of_estimator(ids, without, GAUSSIAN, models.append, {}, scaled=False), {}
    if dataset.name == flights.INFO.name:
        table = {name: each for name, each in described_flights().items() if name not in ("delay", "landed")}
        described = {IDS_ONLY: of_estimator(ids, without, GAUSSIAN, lambda model: None, {}, scaled=False)}
        schema = Schema.parse(flights.ATTRIBUTES)
        spider = of_estimator(table, schema, GAUSSIAN, models.append, {}, scaled=False)
    return {
        SPIDER: spider,
        **described,
        METHODS["biases"].label: of_ids(floors.biases(n_modes, GAUSSIAN)),
        METHODS["mean"].label: of_ids(floors.mean(GAUSSIAN)),
    }


def _raw_ids(dataset: Dataset) -> dict[str, NDArray[Any]]:
    """Raw ids of the entries in the order of time; synthetic nodes have no labels, but numbers."""
    columns = dict(zip(dataset.modes, dataset.in_time_order().index.T, strict=True))
    if not dataset.labels:
        return columns
    return {mode: label[columns[mode]] for mode, label in zip(dataset.modes, dataset.labels, strict=True)}


def _watched(
    console: Console, racers: dict[str, Method], stream: Batch, clock: Clock, words: Words
) -> Iterator[Rows]:
    """Yield the rows of all racers, shown in a live table, or as a line per tenth of the stream."""
    n = len(stream.value)
    passes = [honest_clock(racer, stream, clock, likelihood=GAUSSIAN, at=N_ROWS) for racer in racers.values()]
    groups = (dict(zip(racers, group, strict=True)) for group in zip(*passes, strict=True))
    starting = "Starting; the first run on a machine compiles for ten to twenty seconds ..."
    with console.status(starting) if console.is_interactive else nullcontext():
        rows = first = next(groups)
    tenths = 1  # printed so far; the first tenth is not scored
    with Live(console=console, auto_refresh=False) if console.is_interactive else nullcontext() as live:
        for rows in chain([first], groups):
            asked = _asked(rows[SPIDER])
            if live:
                live.update(_table(rows, n, words), refresh=True)
            elif 10 * asked // n > tenths:
                tenths = 10 * asked // n
                scores = ", ".join(f"{name} {row['score']:.4g}" for name, row in rows.items())
                _print_line(console, f"{asked:,} of {n:,} {words.entries}: RMSE {scores}")
            yield rows
    if not live:
        console.print(_table(rows, n, words))


def _table(rows: Rows, n: int, words: Words) -> Table:
    speed = f"SPIDER learns {rows[SPIDER]['entries_per_second']:,.0f} per second, including id lookup"
    title = f"{_asked(rows[SPIDER]):,} of {n:,} {words.entries}\n{speed}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("", _with_unit("RMSE", words), *SCORES):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, row in rows.items():
        scores = (row["score"], row["window_score"], row["log_density"])
        table.add_row(name, *(_or_dash(f"{score:#.4g}") for score in scores), *_shares(row, "coverage"))
        if row["calibrated_50"] is not None:
            table.add_row("  calibrated", *("" for _ in scores), *_shares(row, "calibrated"))
    return table


def _asked(row: Row) -> int:
    """Number of entries predicted so far."""
    return row["skipped"] + row["n_scored"]


def _shares(row: Row, kind: str) -> list[str]:
    return [_or_dash(f"{100 * row[f'{kind}_{percent}']:.1f} %") for percent in (50, 90)]


def _or_dash(cell: str) -> str:
    return "-" if "nan" in cell else cell  # nothing scored yet


def _with_unit(column: str, words: Words) -> str:
    return f"{column},\n{words.unit}" if words.unit else column


def _print_sum(console: Console, row: Row, model: SpiderRegressor, words: Words, clock: Clock) -> None:
    counted = zip(model.mode_names_, model.n_nodes_, strict=True)
    nodes = ", ".join(f"{name} {n:,}" for name, n in counted if n)
    sentences = (
        f"{clock.case[0].upper()}{clock.case[1:]}.",
        f"The first tenth of the stream, {row['skipped']:,} {words.entries}, is not scored.",
        "RMSE is the typical error; online biases, one number per id, and the mean so far are simple guesses",
        "to beat. Log evidence, the mean log density of what happened, is better if higher.",
        words.coverage,
        f"Learning took {row['seconds']:.0f} seconds and found so many ids: {nodes}.",
    )
    console.print(" ".join(sentences), highlight=False)


def _print_leader(console: Console, model: SpiderRegressor) -> None:
    members = model.members_
    leader = max(members, key=lambda member: member.weight)
    name = _member_names(model)[members.index(leader)]
    line = f"SPIDER is a committee of {len(members)} models; the one with {name} leads, "
    console.print(f"{line}with a weight of {100 * leader.weight:.0f} %.", highlight=False)


def _member_names(model: SpiderRegressor) -> list[str]:
    """Settings in which members differ, such as "bias var 0.1, pair var 0.1, memory 1,000"."""
    members, settings = model.members_, model.settings_
    differ = dict.fromkeys(name for member in members for name in member.own)
    names = []
    for member in members:
        own = {name: (settings | member.own)[name] for name in differ}
        parts = [
            f"{SHORT.get(name, name)} {_in_words(value)}" for name, value in own.items() if value is not None
        ]
        names.append(", ".join(parts))
    return names


def _in_words(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:,g}"


def _extremes(dataset: Dataset, index: NDArray[np.int64], prediction: Prediction, words: Words) -> Table:
    """Predictions of the latest entries by the current model, where it is least and most certain."""
    mean, var, noise = prediction
    ids, order = _raw_ids(dataset), np.argsort(var)
    title = f"The latest {len(index):,} {words.entries}: the widest and narrowest predictions of the model"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in (*dataset.modes, _with_unit("expected", words), "one\nobservation"):
        table.add_column(column, justify="left" if column in dataset.modes else "right", no_wrap=True)
    for which in (order[: -N_EXTREMES - 1 : -1], order[:N_EXTREMES]):
        table.add_section()
        for entry in which:
            own = [str(ids[mode][index[entry, -1]]) for mode in dataset.modes]
            std, of_one = np.sqrt(var[entry]), np.sqrt(var[entry] + noise[entry])
            table.add_row(*own, f"{mean[entry]:.2f} ± {std:.2f}", f"± {of_one:.2f}")
    return table


def _save_picture(console: Console, path: Path, history: list[Rows], words: Words) -> None:
    rows_by_method = {name: [rows[name] for rows in history] for name in history[0]}
    try:
        figure = overview(rows_by_method, entries=words.entries, unit=words.unit)
    except ModuleNotFoundError:
        _print_line(console, "Picture: none; needs matplotlib: pip install 'spidertensor[plot]'")
        return
    with naming(path):
        figure.savefig(path, dpi=150)
    _print_line(console, f"Picture: {path}")


def _print_next(console: Console, path: Path, dataset: Dataset, entry: NDArray[np.int64]) -> None:
    ids, over = {mode: column[entry[-1]] for mode, column in _raw_ids(dataset).items()}, dataset.modes[-1]
    given = " ".join(f"--given {mode}={shlex.quote(str(ids[mode]))}" for mode in dataset.modes[:-1])
    model, evaluate = shlex.quote(str(path)), f"spider evaluate {dataset.name} --protocol"
    console.print("Three commands to try next (recommend ranks the highest expected value first):")
    _print_line(console, f"  spider info {model}")
    _print_line(console, f"  spider recommend {model} {given} --over {over} -n 5")
    _print_line(console, f"  {evaluate} prequential  # if values were known at once")


def _print_line(console: Console, line: str) -> None:
    """Print without wrapping, and without reading markup in paths."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)
