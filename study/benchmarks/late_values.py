"""Values that come late, and models that rest: ours beside peers under the same clock, a JSON line each.

    pip install './study[peers]'
    export SPIDER_DATA=folder OPENBLAS_NUM_THREADS=1
    python benchmarks/late_values.py
    python benchmarks/late_values.py flights --models "spidertensor attributes" --tick 60

Rows are appended to late_values.jsonl as they end, and what has a row is not run again; a table of all rows
comes last.

    next entry           each entry is predicted just before it is learned
    after landing        flights are predicted at their scheduled departure and learned when they have landed;
                         the clock ticks every 15 minutes (--tick)
    1,000 entries ahead  movielens in time order: each entry is predicted before the last 1,000 are known
    at rest              movielens in time order: a history is learned, by ours with `fit`, and the next tenth
                         predicted without learning; three such tenths, the last at the end

The first tenth is not scored. Attributes: demo/flights.py; what peers make of them: late_peers.py. Ours and
LightGBM have nothing tuned; the rates of River are chosen by predicting the first tenth under the same clock.
Coverage, in percent, is that of calibrated intervals: over all, by quarter of the prediction, by month.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import late_peers
import numpy as np
from attributes import Row, add_row, read_rows
from described_streams import STREAMING
from late_peers import Flights
from peers import tuned

from spidertensor import __version__
from spidertensor.demo import flights
from spidertensor.estimator.columns import Schema
from spidertensor.evaluation import at_rest, metrics
from spidertensor.evaluation.clock import Delay, clock_of, honest_clock
from spidertensor.evaluation.protocols import StreamScores, prequential
from spidertensor.evaluation.with_attributes import of_estimator, of_ids
from spidertensor.method import Method
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset
from spidertensor_study.grid import machine, method_of

ROWS = Path(__file__).with_suffix(".jsonl")
AHEAD = Delay(1000, "entries")
RESTS = 0.1
FLIGHTS = "flights"
NEXT, LANDED, LATE, AT_REST = "next entry", "after landing", "1,000 entries ahead", "at rest"
CASES = {
    FLIGHTS: (NEXT, LANDED),
    "movielens-100k": (NEXT, LATE, AT_REST),
    "movielens-1m": (NEXT, LATE, AT_REST),
}


class Model(NamedTuple):
    package: str
    cases: tuple[str, ...]
    attributes: bool = False
    intervals: bool = False


OURS, WITH = "spidertensor", "spidertensor attributes"
MODELS = {
    OURS: Model("spidertensor", (NEXT, LANDED, LATE, AT_REST), intervals=True),
    WITH: Model("spidertensor", (NEXT, LANDED), attributes=True, intervals=True),
    "online biases": Model("spidertensor", (NEXT, LANDED, LATE, AT_REST)),
    "mean": Model("spidertensor", (NEXT, LANDED, LATE, AT_REST)),
    "River FM": Model("river", (LANDED,)),
    "River FM attributes": Model("river", (LANDED,), attributes=True),
    "LightGBM attributes": Model("lightgbm", (LANDED,), attributes=True),
    "LightGBM attributes, recent means": Model("lightgbm", (LANDED,), attributes=True),
}
NAMES = {OURS: "spider", "online biases": "biases", "mean": "mean"}  # those that are known by name


def on_flights(label: str, case: str, given: Flights, seed: int) -> Row:
    make, scaled, more = _maker(label, given)
    began = process_time()
    if case == NEXT:
        *_, row = prequential(make(), given.stream, likelihood=GAUSSIAN, seed=seed, scaled=scaled)
        return _row(label, row) | {"cpu_seconds": round(process_time() - began, 1)}
    scores = StreamScores(given.stream.value, GAUSSIAN)
    *_, row = honest_clock(
        make(), given.stream, given.clock, likelihood=GAUSSIAN, seed=seed, scaled=scaled, scores=scores
    )
    months = given.clock.asked.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    seconds = round(process_time() - began, 1)
    found = _row(label, row) | more
    if MODELS[label].intervals:
        inside, scored = metrics.inside_by_below(scores.below, 0.9), slice(scores.skipped, None)
        numbers = np.unique(months[scored])
        found["months"] = {str(m): _percent(inside[scored][months[scored] == m].mean()) for m in numbers}
    return found | {"cpu_seconds": seconds}


def _maker(label: str, given: Flights) -> tuple[Callable[[], Method], bool, Row]:
    """What makes the method, whether its values are to be scaled, and what was chosen for it."""
    data, ids = given.data, given.stream.index[:, :-1]
    asked, known = (times.astype(np.int64) for times in (given.clock.asked, given.clock.known))
    if label in NAMES:
        method, how = method_of(data, _settings(NAMES[label], 0))
        return lambda: of_ids(method), how["scaled"], {}
    if label == WITH:
        schema = Schema.parse(flights.ATTRIBUTES)
        described = partial(of_estimator, given.table, schema, GAUSSIAN, lambda _: None, {}, scaled=False)
        return described, False, {}
    if MODELS[label].package == "river":
        table = given.columns() if MODELS[label].attributes else {}
        first, clock = given.first()
        features = late_peers.codes(ids, table, len(first.value))

        def score(settings: dict[str, Any]) -> float:
            with np.errstate(all="ignore"):
                method = late_peers.river_fm(data, features, **settings)
                *_, row = honest_clock(method, first, clock, likelihood=GAUSSIAN, scaled=True)
            return row["score"]

        chosen = tuned(STREAMING["River FM"], score, GAUSSIAN)
        return lambda: late_peers.river_fm(data, features, **chosen), True, {"settings": chosen}
    table, trees = given.columns(), []
    if "recent" in label:
        groups = {name: given.table[name] for name in late_peers.RECENT}
        assert given.clock.tick is not None
        table |= late_peers.recent(groups, given.stream.value, asked, known, int(given.clock.tick))
    return lambda: late_peers.lightgbm(ids, table, known, trees), False, {"trees": trees}


def in_time_order(label: str, case: str, data: Dataset, seed: int) -> Row:
    method, how = method_of(data, _settings(NAMES[label], seed))
    stream, began = data.in_time_order(), process_time()
    if case == NEXT:
        *_, row = prequential(method, stream, **how)
    else:
        *_, row = honest_clock(method, stream, clock_of(data, AHEAD), **how)
    return _row(label, row) | {"cpu_seconds": round(process_time() - began, 1)}


def resting(label: str, data: Dataset, seed: int) -> Row:
    settings = _settings(NAMES[label], seed)
    method, how = method_of(data, settings)
    if label == OURS:
        method = at_rest.fitted(data, None, settings | {"engine": "sequential"})
    began = process_time()
    row = at_rest.at_rest(method, data.in_time_order(), RESTS, **how)
    found = {"rmse": round(row["score"], 4), "log_density": round(row["log_density"], 4)}
    if MODELS[label].intervals:
        found |= {f"covers_{level}": _percent(row[f"calibrated_{level}"]) for level in (50, 90)}
    return found | {"cpu_seconds": round(process_time() - began, 1)}


def _settings(name: str, seed: int) -> Row:
    return {"method": name, "rank": 8, "batch_size": 256, "seed": seed}


def _row(label: str, row: Row) -> Row:
    found: Row = {"rmse": round(row["score"], 4), "n_scored": row["n_scored"]}
    if not MODELS[label].intervals:
        return found
    found |= {"log_density": round(row["log_density"], 4)}
    found |= {f"covers_{level}": _percent(row[f"calibrated_{level}"]) for level in (50, 90)}
    return found | {"quarters": [_percent(share) for share in row["quarters"]], "members": row["members"]}


def _percent(share: float) -> float:
    return round(100 * float(share), 2)


def run(label: str, case: str, data: Dataset | Flights, seed: int) -> Row:
    package = MODELS[label].package
    version = __version__ if package == "spidertensor" else metadata.version(package)
    about: Row = {"version": version, "machine": machine(), "load": round(os.getloadavg()[0], 1)}
    if isinstance(data, Flights):
        return about | on_flights(label, case, data, seed)
    if case == AT_REST:
        return about | resting(label, data, seed)
    return about | in_time_order(label, case, data, seed)


def print_table(rows: list[Row]) -> None:
    for row in sorted(rows, key=lambda row: (row["data"], row["case"], row["rmse"])):
        covers = {name: row[name] for name in ("covers_50", "covers_90", "quarters") if name in row}
        print(f"{row['data']:15} {row['case']:20} {row['model']:34} {row['rmse']:8.4f} {covers or ''}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Values that come late, and models that rest.")
    parser.add_argument("data", nargs="*", default=list(CASES))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--cases", nargs="+", default=[NEXT, LANDED, LATE, AT_REST])
    parser.add_argument("--tick", type=float, default=15, help="minutes, on flights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file that rows are added to")
    asked = parser.parse_args(arguments)
    rows = read_rows(asked.rows)
    done = {tuple(row[key] for key in ("data", "case", "model", "seed", "tick")) for row in rows}
    for name in asked.data:
        data = Flights.load(60 * asked.tick) if name == FLIGHTS else datasets.load(name)
        for case in (case for case in CASES[name] if case in asked.cases):
            tick = asked.tick if case == LANDED else None
            for label in (label for label in asked.models if case in MODELS[label].cases):
                about = {"data": name, "case": case, "model": label, "seed": asked.seed, "tick": tick}
                if tuple(about.values()) in done or find_spec(MODELS[label].package) is None:
                    continue
                if MODELS[label].attributes and name != FLIGHTS:
                    continue
                rows.append(about | run(label, case, data, asked.seed))
                add_row(asked.rows, rows[-1])
    print_table(rows)


if __name__ == "__main__":
    main()
