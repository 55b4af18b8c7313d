"""Tables of text: methods down, data sets with their test sets across, an empty cell says "not run"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spidertensor.report import runs as r
from spidertensor.report.insight import cost, timed
from spidertensor.report.runs import Cell, Run

NOT_RUN = "not run"


class Entry(NamedTuple):
    text: str
    best: bool = False


class Table(NamedTuple):
    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]  # name of the method, its entries


def scores(found: Sequence[Run]) -> list[Table]:
    """One table for each rank and batch size, the usual ones first."""
    grid = r.grid(found)
    places = sorted(r.points(grid), key=lambda place: (place != (r.RANK, r.BATCH_SIZE), place))
    return [
        _table(f"Score at rank {rank}, batch size {size}", grid, rank, size, "score") for rank, size in places
    ]


def details(found: Sequence[Run]) -> list[Table]:
    """What else is known of the runs at the usual rank and batch size."""
    grid = r.grid(found)
    wanted: list[tuple[str, str, Callable[[float], float] | None]] = [
        ("Mean log predictive density, higher is better", "log_density", lambda mean: -mean),
        (
            "Share of values inside 50 % intervals, best nearest 0.5",
            "coverage_50",
            lambda mean: abs(mean - 0.5),
        ),
        (
            "Share of values inside 90 % intervals, best nearest 0.9",
            "coverage_90",
            lambda mean: abs(mean - 0.9),
        ),
        ("Calibration error of the probabilities, lower is better", "calibration_error", abs),
        ("Rejected updates", "rejected", None),
    ]
    tables = [_table(caption, grid, r.RANK, r.BATCH_SIZE, key, ranked) for caption, key, ranked in wanted]
    return [_defined(table) for table in tables if _defined(table).columns]


def prequential(found: Sequence[Run]) -> list[Table]:
    chosen = [run for run in found if run.protocol == "prequential" and run.experiment not in r.APART]
    wanted = [("Score", "score", None), ("Mean log predictive density", "log_density", lambda mean: -mean)]
    caption = f"{{}} in time order at rank {r.RANK}, batch size {r.BATCH_SIZE}, first tenth left out"
    return [
        _table(caption.format(what), chosen, r.RANK, r.BATCH_SIZE, key, ranked)
        for what, key, ranked in wanted
        if chosen
    ]


def approximations(found: Sequence[Run]) -> list[Table]:
    tried = [run for run in found if run.experiment == "approximations" and run.scores]
    return [
        _table(f"{what} at rank {rank}, batch size {size}", tried, rank, size, key, ranked)
        for rank, size in r.points(tried)
        for what, key, ranked in (("Score", "score", None), ("Rejected updates", "rejected", None))
    ]


def two_tests(found: Sequence[Run]) -> list[Table]:
    """The published and the clean test set side by side, and what changes between them."""
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
    caption = f"Microseconds per entry at rank {r.RANK}, batch size {r.BATCH_SIZE}, timed alone"
    marks = [_lowest([cell.mean if cell else math.inf for cell in cells]) for cells in by_column]
    return [Table(caption, data_sets, _rows(names, by_column, marks, _three_digits))]


def _table(
    caption: str,
    chosen: Sequence[Run],
    rank: int,
    batch_size: int,
    key: str,
    ranked: Callable[[float], float] | None = None,
) -> Table:
    """ranked: mean -> lower is better; by default by the metric if it is the score, else nothing is best"""
    names, tests = r.names(chosen), r.tests(chosen)
    by_column, marks, columns = [], [], []
    for data, test in tests:
        cells = [r.cell(r.at(chosen, name, data, rank, batch_size), test, key) for name in names]
        metric = r.metric(chosen, data)
        two = sum(each == data for each, _ in tests) > 1
        columns.append(
            data
            + (f" {_TESTS.get(test, test)}" if two else "")
            + (f" {r.METRICS[metric]}" if key == "score" else "")
        )
        by_column.append(cells)
        if ranked:
            marks.append(_lowest([ranked(cell.mean) if cell else math.inf for cell in cells]))
        else:
            marks.append(_best(cells, metric) if key == "score" else [False] * len(cells))
    show = _count if key == "rejected" else str
    return Table(caption, columns, _rows(names, by_column, marks, show))


_TESTS = {"paper": "published"}


def _best(cells: Sequence[Cell | None], metric: str) -> list[bool]:
    return _lowest([r.loss(cell.mean, metric) if cell else math.inf for cell in cells])


def _lowest(losses: Sequence[float]) -> list[bool]:
    least = min((loss for loss in losses if math.isfinite(loss)), default=math.nan)
    return [loss == least for loss in losses]


def _count(cell: Cell) -> str:
    return (
        f"{cell.mean:,.1f} (mean of {cell.seeds} seeds)" if cell.seeds > 1 else f"{cell.mean:,.0f} (1 seed)"
    )


def _three_digits(cell: Cell) -> str:
    shown = f"{cell.mean:.3g}" if cell.mean < 100 else f"{cell.mean:,.0f}"
    return f"{shown} ({cell.seeds} seed{'s' * (cell.seeds > 1)})"


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
    """Without the columns that no method has: binary values have no intervals, continuous ones no odds."""
    kept = [
        number
        for number in range(len(table.columns))
        if any(entries[number].text != NOT_RUN for _, entries in table.rows)
    ]
    rows = [(name, [entries[number] for number in kept]) for name, entries in table.rows]
    return Table(table.caption, [table.columns[number] for number in kept], rows)
