"""`fit` with several passes over a history, beside one pass: a JSON line for each run.

    export SPIDER_DATA=folder
    python benchmarks/passes.py movielens-100k movielens-1m acc anime dblp --seeds 0 1 2 3 4 --workers 2

Learned: the training part of `data.split(seed)`; scored: the test part, by the model at rest. Each run has
one core. Rows are appended to passes.jsonl as they end, and what has a row is not run again. `errors` are
those of the slice that the judge held back, after each pass; nothing is chosen on what is scored.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from described_data import ATTRIBUTES, IDS, Described, movielens, without_attributes

from spidertensor import SpiderClassifier, SpiderRegressor, __version__
from spidertensor.evaluation import metrics
from spidertensor_study import datasets
from spidertensor_study.grid import machine

ROWS = Path(__file__).with_suffix(".jsonl")

Row = dict[str, Any]


class Run(NamedTuple):
    data: str
    columns: str
    passes: int | str
    seed: int


def described_of(run: Run) -> Described:
    if run.columns == ATTRIBUTES:
        return movielens(run.data)
    return without_attributes(datasets.load(run.data))


def result(run: Run) -> Row:
    """Run on one core, so that the seconds are comparable."""
    if hasattr(os, "sched_setaffinity"):
        free = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {free[os.getpid() % len(free)]})
    described = described_of(run)
    data = described.data
    train, test = data.split(run.seed)
    settings: dict[str, Any] = {"passes": run.passes, "random_state": run.seed}
    if run.columns == ATTRIBUTES:
        tables = zip(data.modes, described.tables, strict=True)
        settings["modes"] = {mode: list(table) for mode, table in tables}
    binary = data.likelihood.binary
    model = (SpiderClassifier if binary else SpiderRegressor)(**settings)

    def asked(index: Any) -> Any:
        return described.frame(index, run.columns) if run.columns == ATTRIBUTES else index

    small = slice(0, 2000)  # compiles
    warm = (SpiderClassifier if binary else SpiderRegressor)(**(settings | {"passes": 2}))
    warm.fit(asked(train.index[small]), train.value[small])
    began = perf_counter()
    model.fit(asked(train.index), train.value)
    seconds = perf_counter() - began
    row: Row = run._asdict() | {"columns": run.columns, "version": __version__, "machine": machine()}
    if binary:
        row["metric"], row["score"] = (
            "auc",
            metrics.auc(test.value, model.predict_proba(asked(test.index))[:, 1]),
        )
    else:
        mean = model.predict(asked(test.index))
        low, high = model.predict_interval(asked(test.index), 0.9)
        row["metric"], row["score"] = "rmse", metrics.rmse(test.value, mean)
        row["coverage_90"] = float(np.mean((low <= test.value) & (test.value <= high)))
    history = model.history_ or {"errors": [], "chosen": 1, "stopped": "passes is 1"}
    row |= {name: history[name] for name in ("errors", "chosen", "stopped")}
    return row | {"weights": [round(each.weight, 3) for each in model.members_], "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--columns", nargs="+", default=[IDS], choices=[IDS, ATTRIBUTES])
    parser.add_argument("--passes", nargs="+", default=["auto"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=ROWS)
    given = parser.parse_args()
    passes = [each if each == "auto" else int(each) for each in given.passes]
    wanted = [Run(*each) for each in product(given.data, given.columns, passes, given.seeds)]
    known = set()
    if given.rows.exists():
        rows = map(json.loads, given.rows.read_text().splitlines())
        known = {Run(*(row[name] for name in Run._fields)) for row in rows}
    # without attributes there is nothing to compare
    wanted = [run for run in wanted if run not in known and (run.columns == IDS or "movielens" in run.data)]
    with ProcessPoolExecutor(given.workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(result, run) for run in wanted]):
            text = json.dumps(done.result())
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            with given.rows.open("a") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
