"""What a column of numbers, or of lists, is best turned into: chosen on training streams only.

    export SPIDER_DATA=folder OPENBLAS_NUM_THREADS=1
    python benchmarks/number_kinds.py

Every entry is predicted, then learned; RMSE without the first tenth, mean over seeds. movielens-100k: the
training part of split 0, with age and year, or with genres. Flights: the first quarter of the year, with the
distance and the weather.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from described_data import movielens

from spidertensor import Context, Many, Number, SpiderRegressor, Value
from spidertensor.demo import described_flights, flights
from spidertensor.estimator.columns import many, number
from spidertensor.estimator.columns.cells import Elements
from spidertensor.estimator.columns.number import NumberState
from spidertensor.evaluation import metrics

FIRST = 256  # entries whose numbers make the bins, as they make the knots
SKIPPED = 0.1
Columns = dict[str, Any]


def linear(state: NumberState, encoded: Any) -> Elements:
    """One node, whose weight is the number in units of half the interquartile range."""
    missing = np.isnan(encoded.codes)
    missing[: encoded.ready] = True
    assert state.grid is not None
    z = np.clip((np.where(missing, 0.0, encoded.codes) - state.grid.centre) / state.grid.width, -8, 8) / 2
    row = np.where(missing, number.N_KNOTS, 0)
    return Elements(np.ones(len(z), np.int64), row, np.where(missing, 1, z).astype(np.float32))


@contextmanager
def knots(n: int) -> Iterator[None]:
    with patch.object(number, "N_KNOTS", n), patch.object(NumberState, "n_rows", n + 1):
        yield


@contextmanager
def weights(of_n: Callable[[int], float]) -> Iterator[None]:
    """The values of a list weigh this much. of_n: of the length of the list"""
    cells_of = many.cells_of

    def changed(column: Any, sep: str | None) -> Any:
        cells = cells_of(column, sep)
        size = np.diff(cells.start)
        return cells._replace(weight=np.repeat([of_n(max(n, 1)) for n in size.tolist()], size))

    with patch.object(many, "cells_of", changed):
        yield


def binned(columns: Columns, names: list[str], n: int) -> Columns:
    """The columns with the number of a bin instead of each number; None where it is missing."""
    found = dict(columns)
    for name in names:
        cells = np.asarray(columns[name], np.float64)
        first = cells[:FIRST][~np.isnan(cells[:FIRST])]
        bins = np.searchsorted(np.unique(np.quantile(first, np.arange(1, n) / n)), cells)
        found[name] = [None if np.isnan(x) else int(b) for x, b in zip(cells, bins, strict=True)]
    return found


def error(columns: Columns, y: Any, modes: Any, seeds: int) -> float:
    scores = []
    for seed in range(seeds):
        mean = np.asarray(SpiderRegressor(modes=modes, random_state=seed).learn(columns, y).mean)
        start = int(SKIPPED * len(y))
        scores.append(metrics.rmse(y[start:], mean[start:]))
    return float(np.mean(scores))


def numbers(columns: Columns, y: Any, modes: Callable[[Any], Any], names: list[str], seeds: int) -> None:
    """Print a line for each kind. modes: made with a function from a column's name to what it is"""
    print(f"  12 knots   {error(columns, y, modes(Number), seeds):.4f}", flush=True)
    for n in (6, 24):
        with knots(n):
            print(f"  {n:2} knots   {error(columns, y, modes(Number), seeds):.4f}", flush=True)
    with patch.object(NumberState, "elements", linear):
        print(f"  linear     {error(columns, y, modes(Number), seeds):.4f}", flush=True)
    for n in (12, 24):
        print(f"  {n:2} bins    {error(binned(columns, names, n), y, modes(Value), seeds):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    described = movielens("movielens-100k")
    train = described.data.split(0)[0]
    columns, y = described.frame(train.index, "attributes"), train.value
    print("movielens-100k, age and year")
    numbers(columns, y, lambda kind: {"user": [kind("age")], "movie": [kind("year")]}, ["age", "year"], seeds)
    print(f"  ids alone  {error(columns, y, {'user': [], 'movie': []}, seeds):.4f}", flush=True)
    print("movielens-100k, genres")
    modes = {"user": [], "movie": [Many("genres")]}
    for label, of_n in {"1/sqrt(n)": lambda n: n**-0.5, "1/n": lambda n: 1 / n, "1": lambda n: 1.0}.items():
        with weights(of_n):
            print(f"  {label:10} {error(columns, y, modes, seeds):.4f}", flush=True)
    whole = columns | {"genres": ["|".join(sorted(each)) for each in columns["genres"]]}
    print(f"  one value  {error(whole, y, {'user': [], 'movie': [Value('genres')]}, seeds):.4f}", flush=True)
    print("flights, distance and weather")
    table = described_flights()
    quarter = {name: column[: len(column) // 4] for name, column in table.items()}
    plain = [*flights.WEATHER, "distance"]

    def of_flights(kind: Any) -> Any:
        ids = {mode: [] for mode in flights.MODES} | {"dest": [kind("distance")]}
        return ids | {"weather": Context(*(kind(name) for name in flights.WEATHER))}

    numbers(quarter, quarter["delay"], of_flights, plain, seeds)
    print(f"  ids alone  {error(quarter, quarter['delay'], {m: [] for m in flights.MODES}, seeds):.4f}")


if __name__ == "__main__":
    main()
