"""Tables of text: a row per method, a column per test set; an empty cell says "not run"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spidertensor.evaluation.metrics import METRICS, PERCENTS, WINDOW_ENTRIES
from spidertensor_study.registry import METHODS
from spidertensor_study.report import approximations as of_approximations
from spidertensor_study.report import runs as r
from spidertensor_study.report.costs import cost, three_digits, timed
from spidertensor_study.report.runs import Cell, Run

NOT_RUN = "not run"
MANY_REJECTED = 0.01  # share of the entries


class Entry(NamedTuple):
    text: str
    best: bool = False


class Table(NamedTuple):
    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]  # name of the method, its entries
    note: str = ""  # below the caption


def scores(found: Sequence[Run]) -> list[Table]:
    """One table for each rank and batch size, the usual ones first."""
    grid = r.grid(found)
    places = sorted(r.points(grid), key=lambda place: (place != (r.RANK, r.BATCH_SIZE), place))
    tables = [
        _table(f"Score at rank {rank}, batch size {size}", grid, rank, size, "score") for rank, size in places
    ]
    return [_with_size(_defined(table), grid, rank) for table, (rank, _) in zip(tables, places, strict=True)]


def _with_size(table: Table, chosen: Sequence[Run], rank: int) -> Table:
    """The table with how many numbers each method keeps of a node, in front."""
    run_of = {run.name: run for run in chosen}
    rows = []
    for name, entries in table.rows:
        run = run_of[name]
        size = METHODS[run.method].numbers_per_node({**run.settings, "rank": rank})
        rows.append((name, [Entry(f"{size:,}"), *entries]))
    return table._replace(columns=["numbers per node", *table.columns], rows=rows)


def capacity(found: Sequence[Run]) -> list[Table]:
    """Scores beside sizes: rivals at larger ranks, ours with fewer numbers."""
    chosen = [run for run in found if run.experiment == "capacity"]
    tests = r.tests(chosen)
    columns = ["rank", "numbers per node", *(f"{data} {_said_test(test)}" for data, test in tests)]
    settings = dict.fromkeys((run.name, run.method, run.rank) for run in chosen)
    sized = []
    for name, method, rank in settings:
        here = [run for run in chosen if run.name == name and run.rank == rank]
        size = METHODS[method].numbers_per_node(here[0].settings)
        cells = [r.cell([run for run in here if run.data == data], test) for data, test in tests]
        sized.append((name, rank, size, cells))
    sized.sort(key=lambda each: each[2])
    marks = [
        _best([cells[n] for *_, cells in sized], r.metric(chosen, data)) for n, (data, _) in enumerate(tests)
    ]
    rows = []
    for place, (name, rank, size, cells) in enumerate(sized):
        scores = [Entry(str(cell) if cell else NOT_RUN, marks[n][place]) for n, cell in enumerate(cells)]
        rows.append((name, [Entry(str(rank)), Entry(f"{size:,}"), *scores]))
    return [Table("Score and size", columns, rows)] if rows else []


def details(found: Sequence[Run]) -> list[Table]:
    """Tables of other numbers at the usual rank and batch size."""
    grid = r.grid(found)
    wanted: list[tuple[str, str, Callable[[float], float] | None]] = [
        (metric.caption, name, metric.loss) for name, metric in METRICS.items() if metric.caption
    ]
    wanted.append(("Rejected updates", "rejected", None))
    tables = [_table(caption, grid, r.RANK, r.BATCH_SIZE, key, ranked) for caption, key, ranked in wanted]
    return [*(_defined(table) for table in tables if _defined(table).columns), *_coverage(grid, "held out")]


def prequential(found: Sequence[Run]) -> list[Table]:
    chosen = r.results(found, "prequential")
    wanted = [
        ("Score", "score", None),
        ("Mean log predictive density", "log_density", METRICS["log_density"].loss),
    ]
    caption = f"{{}} in time order at rank {r.RANK}, batch size {r.BATCH_SIZE}, first tenth left out"
    tables = [
        _table(caption.format(what), chosen, r.RANK, r.BATCH_SIZE, key, ranked)
        for what, key, ranked in wanted
        if chosen
    ]
    return [*tables, *_coverage(chosen, "in time order")]


# Kinds of intervals: keys in rows, and what is added to names.
KINDS = {"coverage": "", "calibrated": ", calibrated"}
NEAREST = (
    "What is nearest to its level is marked. The ends of an interval are quantiles of a normal distribution, "
    "those of a calibrated one quantiles of how far earlier entries lay from what was predicted for them."
)
OF_WINDOWS = f" Lowest and highest window: of all stretches of {WINDOW_ENTRIES:,} entries in a row."


def _coverage(chosen: Sequence[Run], how: str) -> list[Table]:
    """A table for each test set with a column per level; a method that calibrates has a row for each kind."""
    levels = {f"{percent} %": (str(percent), percent / 100) for percent in PERCENTS}
    worst = {f"90 %, {end} window": (f"90_{end}", None) for end in ("lowest", "highest")}
    tables = []
    for data, test in r.tests(chosen):
        here = {name: r.at(chosen, name, data, r.RANK, r.BATCH_SIZE) for name in r.names(chosen)}
        lines = [(name, kind) for name in here for kind in KINDS]
        by_column, marks = [], []
        for key, target in (levels | worst).values():
            cells = [r.cell(here[name], test, f"{kind}_{key}") for name, kind in lines]
            off = [abs(cell.mean - target) if cell and target else math.inf for cell in cells]
            by_column.append(cells)
            marks.append(_lowest(off))
        names = [f"{name}{KINDS[kind]}" for name, kind in lines]
        two = sum(each == data for each, _ in r.tests(chosen)) > 1
        caption = f"Share of values inside intervals, {how}: {data}" + (f" {_said_test(test)}" if two else "")
        table = _defined(Table(caption, [*levels, *worst], _rows(names, by_column, marks, _share)))
        if table.columns:
            note = NEAREST + (OF_WINDOWS if set(worst) & set(table.columns) else "")
            tables.append(_without_not_run(table)._replace(note="" if tables else note))  # the note only once
    return tables


def engines(found: Sequence[Run]) -> list[Table]:
    """The same runs with both engines."""
    chosen = [run for run in found if run.experiment == "engines"]
    of_protocol = {
        what: [run for run in chosen if run.protocol == protocol]
        for protocol, what in (("held-out", "Held-out score"), ("prequential", "Score in time order"))
    }
    return [
        _table(f"{what} at rank {r.RANK}, batch size {r.BATCH_SIZE}", runs, r.RANK, r.BATCH_SIZE, "score")
        for what, runs in of_protocol.items()
        if runs
    ]


def starts(found: Sequence[Run]) -> list[Table]:
    """Descents from one random start, where all other runs have the best of several."""
    chosen = [run for run in found if run.experiment == "starts"]
    return [
        _table(f"One start: held-out score at rank {rank}", chosen, rank, r.BATCH_SIZE, "score")
        for rank in sorted({run.rank for run in chosen})
    ]


def approximations(found: Sequence[Run]) -> list[Table]:
    """Three tables for each activation, and rank and batch size."""
    tried = [run for run in of_approximations.tried(found) if run.scores]
    by_activation: dict[str, list[Run]] = {}
    for run in tried:
        by_activation.setdefault(of_approximations.activation(run), []).append(run)
    wanted: list[tuple[str, str, Callable[[float], float] | None]] = [
        ("Score", "score", None),
        (METRICS["log_density"].caption, "log_density", METRICS["log_density"].loss),
        ("Rejected updates", "rejected", None),
    ]
    return [
        _table(f"{activation}: {what}; rank {rank}, batch size {size}", runs, rank, size, key, ranked)
        for activation, runs in by_activation.items()
        for rank, size in r.points(runs)
        for what, key, ranked in wanted
    ]


def tuning(found: Sequence[Run]) -> list[Table]:
    """The score of every learning rate that was tried, and the rate used in the held-out runs."""
    tried = [run for run in found if run.experiment == "tuning" and "learning_rate" in run.settings]
    rates = sorted({run.settings["learning_rate"] for run in tried})
    rows = []
    for method, data in dict.fromkeys((run.method, run.data) for run in tried):
        here = [run for run in tried if (run.method, run.data) == (method, data)]
        cells = [r.cell([run for run in here if run.settings["learning_rate"] == x], "stream") for x in rates]
        metric = r.metric(here, data)
        used = sorted(
            {
                rate
                for run in r.grid(found)
                if (run.method, run.data) == (method, data)
                and (rate := run.settings.get("learning_rate")) is not None
            }
        )
        entries = [
            Entry(r.number(cell.mean) if cell else NOT_RUN, best)
            for cell, best in zip(cells, _best(cells, metric), strict=True)
        ]
        entries.append(Entry(", ".join(f"{rate:g}" for rate in used) or NOT_RUN))
        rows.append((f"{r.LABELS.get(method, method)}, {data}, {METRICS[metric].label}", entries))
    columns = [*(f"{rate:g}" for rate in rates), "used"]
    how = ", ".join(f"{key.replace('_', ' ')} {_all(tried, key)}" for key in _TUNED_AT)
    note = (
        f"Each entry of the first tenth of the training stream ({how}) is predicted, then learned, once with "
        'each rate; no test entry is looked at. The best rate of a row is marked; "used" is that of the '
        "held-out runs."
    )
    return [Table("Learning rates: score of each", columns, rows, note)] if rows else []


_TUNED_AT = ("rank", "batch_size", "epochs", "seed")


def _all(runs: Sequence[Run], key: str) -> str:
    return " or ".join(sorted({str(run.settings.get(key, "default")) for run in runs}))


def rejected(found: Sequence[Run]) -> list[Table]:
    """Runs that refused many of their entries, one row per method and setting.

    Rows from before version 0.2 have no `refused`. Their `rejected` counts entries, and elements for SPIDER.
    """
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for run in found:
        for score in list(run.scores.values())[:1]:  # the same on every test set of a run
            place = (run.name, run.experiment, run.data, str(run.settings.get("activation") or ""))
            count = score["refused"] if "refused" in score else score["rejected"]
            share = count / max(score["n_entries"], 1)
            groups.setdefault((*place, str(run.rank), str(run.batch_size)), []).append((share, count))
    rows = []
    for (name, *place), runs in groups.items():
        many = [(share, count) for share, count in runs if share > MANY_REJECTED]
        if many:
            share, count = max(many)
            most = f"{count:,} ({share:.1%})"
            rows.append((name, [*map(Entry, place), Entry(f"{len(many)} of {len(runs)}"), Entry(most)]))
    columns = ["experiment", "data", "activation", "rank", "batch size", "runs", "most in one run"]
    caption = f"Runs with rejected entries: more than {MANY_REJECTED:.0%} of the entries"
    table = Table(caption, columns, rows)
    return [_without_empty(table)] if rows else []


def two_tests(found: Sequence[Run]) -> list[Table]:
    """The published and the clean test set side by side, and their difference."""
    grid = [run for run in r.grid(found) if {"paper", "clean"} <= run.scores.keys()]
    data_sets = r.data_sets(grid)
    if not data_sets:
        return []
    columns = [f"{data} {what}" for data in data_sets for what in ("published", "clean", "clean − published")]
    by_column: list[list[Cell | None]] = []
    for data in data_sets:
        groups = [r.at(grid, name, data, r.RANK, r.BATCH_SIZE) for name in r.names(grid)]
        both = [[r.cell(group, test) for group in groups] for test in ("paper", "clean")]
        change = [r.average(_score(run, "clean") - _score(run, "paper") for run in group) for group in groups]
        by_column += [*both, change]
    marks = [
        _best(cells, r.metric(grid, data_sets[number // 3])) if number % 3 < 2 else [False] * len(cells)
        for number, cells in enumerate(by_column)
    ]
    caption = f"Published and clean test sets at rank {r.RANK}, batch size {r.BATCH_SIZE}"
    return [Table(caption, columns, _rows(r.names(grid), by_column, marks))]


def _score(run: Run, test: str) -> float:
    return r.number_of(run.scores[test]["score"])


def times(found: Sequence[Run]) -> list[Table]:
    found = timed(found)
    data_sets, names = r.data_sets(found), r.names(found)
    if not data_sets:
        return []
    by_column = [[cost(found, name, data, r.RANK, r.BATCH_SIZE) for name in names] for data in data_sets]
    jobs = max(run.jobs for run in found)
    alone = "one run at a time" if jobs == 1 else f"up to {jobs} runs at a time, so not to be relied on"
    caption = f"Microseconds per entry at rank {r.RANK}, batch size {r.BATCH_SIZE}, {alone}"
    marks = [_lowest([cell.mean if cell else math.inf for cell in cells]) for cells in by_column]
    cut = {run.settings["entries"] for run in found if run.settings.get("entries")}
    note = "; ".join(
        f"on the first {n:,} entries: "
        + ", ".join(r.names(run for run in found if run.settings.get("entries") == n))
        for n in sorted(cut)
    )
    return [Table(caption, data_sets, _rows(names, by_column, marks, _time), note)]


def _table(
    caption: str,
    chosen: Sequence[Run],
    rank: int,
    batch_size: int,
    key: str,
    ranked: Callable[[float], float] | None = None,
) -> Table:
    """A table. ranked: mean -> loss, to mark the best; by default only scores are ranked, by their metric"""
    names, tests = r.names(chosen), r.tests(chosen)
    by_column, marks, columns = [], [], []
    for data, test in tests:
        cells = [r.cell(r.at(chosen, name, data, rank, batch_size), test, key) for name in names]
        metric = r.metric(chosen, data)
        two = sum(each == data for each, _ in tests) > 1
        columns.append(
            data
            + (f" {_said_test(test)}" if two else "")
            + (f" {METRICS[metric].label}" if key == "score" else "")
        )
        by_column.append(cells)
        if ranked:
            marks.append(_lowest([ranked(cell.mean) if cell else math.inf for cell in cells]))
        else:
            marks.append(_best(cells, metric) if key == "score" else [False] * len(cells))
    show = _count if key == "rejected" else str
    return Table(caption, columns, _rows(names, by_column, marks, show))


def _said_test(test: str) -> str:
    return {"paper": "published"}.get(test, test)


def _best(cells: Sequence[Cell | None], metric: str) -> list[bool]:
    return _lowest([r.loss(cell.mean, metric) if cell else math.inf for cell in cells])


def _lowest(losses: Sequence[float]) -> list[bool]:
    least = min((loss for loss in losses if math.isfinite(loss)), default=math.nan)
    return [loss == least for loss in losses]


def _count(cell: Cell) -> str:
    return (
        f"{cell.mean:,.1f} (mean of {cell.seeds} seeds)" if cell.seeds > 1 else f"{cell.mean:,.0f} (1 seed)"
    )


def _share(cell: Cell) -> str:
    deviation = f" ± {100 * cell.sd:.1f}" if cell.seeds > 1 else ""
    return f"{100 * cell.mean:.1f} %{deviation} ({cell.seeds} seed{'s' * (cell.seeds > 1)})"


def _time(cell: Cell) -> str:
    return f"{three_digits(cell.mean)} ({cell.seeds} seed{'s' * (cell.seeds > 1)})"


def _rows(
    names: Sequence[str],
    by_column: Sequence[Sequence[Cell | None]],
    marks: Sequence[Sequence[bool]],
    show: Callable[[Cell], str] = str,
) -> list[tuple[str, list[Entry]]]:
    rows = []
    for name, cells, best in zip(names, zip(*by_column, strict=True), zip(*marks, strict=True), strict=True):
        texts = [show(cell) if cell else NOT_RUN for cell in cells]
        rows.append((name, [Entry(*entry) for entry in zip(texts, best, strict=True)]))
    return rows


def _defined(table: Table) -> Table:
    """The table without empty columns: binary values have no intervals, continuous ones no odds."""
    kept = [
        number
        for number in range(len(table.columns))
        if any(entries[number].text != NOT_RUN for _, entries in table.rows)
    ]
    return _columns(table, kept)


def _without_not_run(table: Table) -> Table:
    """The table without empty rows: most methods do not calibrate, and not all were run everywhere."""
    kept = [(name, row) for name, row in table.rows if any(entry.text != NOT_RUN for entry in row)]
    return table._replace(rows=kept)


def _without_empty(table: Table) -> Table:
    kept = [n for n in range(len(table.columns)) if any(entries[n].text for _, entries in table.rows)]
    return _columns(table, kept)


def _columns(table: Table, kept: Sequence[int]) -> Table:
    rows = [(name, [entries[number] for number in kept]) for name, entries in table.rows]
    return table._replace(columns=[table.columns[number] for number in kept], rows=rows)
