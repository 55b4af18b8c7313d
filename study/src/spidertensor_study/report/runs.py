"""Rows of experiments as runs, and the cells of a table or a figure: mean and deviation over the seeds.

Runs with the same name belong together. An additional setting that differs between runs of one method on one
data set, such as epochs, becomes part of the name, so that no mean is taken over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from spidertensor.evaluation.metrics import METRICS
from spidertensor_study.registry import METHODS

LABELS = {name: entry.label for name, entry in METHODS.items()}  # in the order of every legend and table
PAPER, COMPETITORS = (
    tuple(name for name, entry in METHODS.items() if entry.role == role) for role in ("paper", "competitor")
)
STATIC = tuple(name for name, entry in METHODS.items() if entry.unit == "all")
RANK_FREE = tuple(name for name, entry in METHODS.items() if not entry.has_rank)
BATCH_FREE = tuple(name for name, entry in METHODS.items() if not entry.has_batch_size)
DATA = ("movielens-1m", "acc", "anime", "dblp")  # the paper's, in the order of its figures
RANK, BATCH_SIZE = 8, 256  # kept fixed while the other is varied
APART = (
    "time",
    "tuning",
    "approximations",
    "engines",
    "starts",
    "capacity",
)  # experiments with sections of their own
USUAL = {"method", "data", "protocol", "rank", "batch_size", "seed", "at"}


class Run(NamedTuple):
    """A run: one row."""

    experiment: str
    method: str
    name: str  # label of the method
    data: str
    protocol: str
    rank: int
    batch_size: int
    seed: int
    scores: Mapping[str, Mapping[str, Any]]  # by test set
    curve: Sequence[Mapping[str, Any]]
    weights: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]  # all settings
    jobs: int  # runs at the same time
    machine: str


class Cell(NamedTuple):
    mean: float
    sd: float  # NaN with one seed
    seeds: int
    low: float
    high: float

    def __str__(self) -> str:
        deviation = f" ± {number(self.sd)}" if self.seeds > 1 else ""
        return f"{number(self.mean)}{deviation} ({self.seeds} seed{'s' * (self.seeds > 1)})"


def runs(rows: Iterable[Mapping[str, Any]]) -> list[Run]:
    """The rows without an error, in the order of LABELS, data set, rank and batch size."""
    return _sorted_runs(row for row in rows if not row["error"])


def failed(rows: Iterable[Mapping[str, Any]]) -> list[Run]:
    """The rows with an error, in the same order."""
    return _sorted_runs(row for row in rows if row["error"])


def _sorted_runs(rows: Iterable[Mapping[str, Any]]) -> list[Run]:
    rows = list(rows)
    varying = _varying(rows)
    found = [_run(row, varying[_group(row)]) for row in rows]

    def place(run: Run) -> tuple[int, str, int, str, int, int]:
        return (
            _place(run.method, LABELS), run.name, _place(run.data, DATA), run.data, run.rank, run.batch_size,
        )  # fmt: skip

    return sorted(found, key=place)


def _run(row: Mapping[str, Any], varying: set[str]) -> Run:
    settings = row["settings"]
    method: str = settings["method"]
    parts = [_setting_text(key, settings.get(key)) for key in sorted(varying)]
    name = ", ".join([LABELS.get(method, method), *filter(None, parts)])
    return Run(
        row["experiment"], method, name, settings["data"], settings["protocol"], settings["rank"],
        settings["batch_size"], settings["seed"],
        row.get("scores") or {}, row.get("curve") or [], row.get("weights") or [],
        settings, row.get("jobs") or 1, row.get("machine") or "",
    )  # fmt: skip


def _setting_text(key: str, value: Any) -> str:
    """A setting as part of a name: "default" if it is not set, '' for a switch that is off."""
    name = key.replace("_", " ")
    if isinstance(value, bool):
        return name if value else ""
    if value is None:
        value = "all" if key == "entries" else "default"
    return f"{name} {value}"


def _group(row: Mapping[str, Any]) -> tuple[str, str, str]:
    settings = row["settings"]
    experiment = row["experiment"] if is_apart(row["experiment"]) else ""
    return settings["method"], settings["protocol"], experiment


def _varying(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], set[str]]:
    """For each group, the settings that differ between its runs on one data set."""
    rows = list(rows)
    settings_of: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        settings_of.setdefault((_group(row), row["settings"]["data"]), []).append(row["settings"])
    varying: dict[tuple[str, str, str], set[str]] = {_group(row): set() for row in rows}
    for (group, _), settings in settings_of.items():
        for key in set().union(*settings) - USUAL:
            if len({str(each.get(key)) for each in settings}) > 1:
                varying[group].add(key)
    return varying


def _place(thing: str, order: Iterable[str]) -> int:
    order = list(order)
    return order.index(thing) if thing in order else len(order)


def is_apart(experiment: str) -> bool:
    """Whether it is one of APART, or a variant of one: "approximations-tanh"."""
    return experiment.partition("-")[0] in APART


def cut_short(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Warnings about runs that learned only the start of a stream, whose scores are not results.

    Experiments about time and about approximations use short streams on purpose.
    """
    lines = []
    scored = [
        row
        for row in rows
        if row["settings"]["protocol"] in ("held-out", "prequential")
        and (not is_apart(row["experiment"]) or row["experiment"] == "engines")
    ]
    for experiment in sorted({row["experiment"] for row in scored}):
        entries = [row["settings"].get("entries") for row in scored if row["experiment"] == experiment]
        cut = [n for n in entries if n]
        first = " or ".join(f"{n:,}" for n in sorted(set(cut)))
        if cut:
            which = "" if len(cut) == len(entries) else f" in {len(cut):,} of {len(entries):,} rows"
            lines.append(f"{experiment}: learned from the first {first} entries only{which}")
    return lines


def results(found: Iterable[Run], protocol: str) -> list[Run]:
    """The runs that measure how good a method is, from all files."""
    return [
        run
        for run in found
        if run.protocol == protocol and run.method in LABELS and not is_apart(run.experiment)
    ]


def grid(found: Iterable[Run]) -> list[Run]:
    """The held-out runs, on all data sets."""
    return results(found, "held-out")


def paper_grid(found: Iterable[Run]) -> list[Run]:
    """The held-out runs on the paper's data sets: what its figures and claims are about."""
    return [run for run in grid(found) if run.data in DATA]


def figure_grid(found: Iterable[Run]) -> list[Run]:
    """The same for figures; all held-out runs if there are none on the paper's data sets."""
    found = list(found)
    return paper_grid(found) or grid(found)


def names(found: Iterable[Run], methods: Iterable[str] | None = None) -> list[str]:
    """The distinct names of the methods, in order."""
    wanted = None if methods is None else set(methods)
    return list(dict.fromkeys(run.name for run in found if wanted is None or run.method in wanted))


def data_sets(found: Iterable[Run]) -> list[str]:
    """The data sets, those of the paper first, in its order."""
    return sorted({run.data for run in found}, key=lambda data: (_place(data, DATA), data))


def tests(found: Iterable[Run]) -> list[tuple[str, str]]:
    """Data sets with each of their test sets."""
    found = list(found)
    return [
        (data, test)
        for data in data_sets(found)
        for test in dict.fromkeys(test for run in found if run.data == data for test in run.scores)
    ]


def points(found: Iterable[Run]) -> list[tuple[int, int]]:
    """Every (rank, batch size) of the runs whose method sees them."""
    found = list(found)
    seen = {(run.rank, run.batch_size) for run in found if run.method not in BATCH_FREE}
    return sorted(seen or {(run.rank, run.batch_size) for run in found})


def at(found: Iterable[Run], name: str, data: str, rank: int, batch_size: int) -> list[Run]:
    """The runs of a cell, one per seed; the later row if there are two."""
    chosen = {
        run.seed: run
        for run in found
        if run.name == name
        and run.data == data
        and (run.rank == rank or run.method in RANK_FREE)
        and (run.batch_size == batch_size or run.method in BATCH_FREE)
    }
    return [chosen[seed] for seed in sorted(chosen)]


def cell(chosen: Iterable[Run], test: str, key: str = "score") -> Cell | None:
    """Mean and deviation over the runs; None without runs, NaN if a run has no finite number."""
    values = [run.scores[test].get(key) for run in chosen if test in run.scores]
    if key == "score":  # every run has a score; other numbers may be missing
        values = map(number_of, values)
    return average(value for value in values if value is not None)


def by_seed(chosen: Iterable[Run], test: str, key: str = "score") -> dict[int, float]:
    """One number per run; NaN if it is not finite."""
    return {run.seed: number_of(run.scores[test].get(key)) for run in chosen if test in run.scores}


def average(values: Iterable[float]) -> Cell | None:
    values = list(values)
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return Cell(math.nan, math.nan, len(values), math.nan, math.nan)
    sd = stdev(values) if len(values) > 1 else math.nan
    return Cell(fmean(values), sd, len(values), min(values), max(values))


def number_of(value: float | None) -> float:
    """The number as a float; NaN for null."""
    return math.nan if value is None else value


def metric(found: Iterable[Run], data: str) -> str:
    """The metric of a data set: "rmse" or "auc"."""
    return next(score["metric"] for run in found if run.data == data for score in run.scores.values())


def loss(score: float, metric: str) -> float:
    """The score as a loss, lower being better for any metric; infinite for NaN."""
    if not math.isfinite(score):
        return math.inf
    return METRICS[metric].loss(score) if metric in METRICS else score


def listed(methods: Iterable[str]) -> str:
    """The labels of methods in a sentence: "A, B and C"."""
    *most, last = (LABELS[name] for name in methods)
    return f"{', '.join(most)} and {last}" if most else last


def mean_curve(chosen: Sequence[Run], key: str) -> dict[int, Cell]:
    """The points of running curves by entries learned, where all runs have a point."""
    values: dict[int, list[float]] = {}
    for run in chosen:
        for point in run.curve:
            values.setdefault(point["n_entries"], []).append(number_of(point.get(key)))
    averages = {n: average(each) for n, each in sorted(values.items()) if len(each) == len(chosen)}
    return {n: each for n, each in averages.items() if each}


def number(value: float) -> str:
    """Four decimals where scores are near one, fewer where they are large."""
    if not math.isfinite(value):
        return "not a number"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
