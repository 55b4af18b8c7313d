"""Attributes beside ids: models given the same columns, the same splits, one run, a JSON line each.

    pip install './study[peers]'
    export SPIDER_DATA=folder OPENBLAS_NUM_THREADS=1
    python benchmarks/attributes.py movielens-100k --seeds 0 1 2
    python benchmarks/attributes.py movielens-1m --models myFM LightGBM --seeds 0

Rows are appended to attributes.jsonl as they end, and what has a row is not run again; a table of all rows
comes last.

    held out     learned: the training part of `data.split(seed)`, in its order; scored: the test part
    prequential  entries in time order, each predicted and then learned; the first tenth is not scored

Columns: "ids", or "attributes", which are ids with age, gender and occupation of the user, and year and
genres of the movie. Streaming models see the training entries once. Nothing is chosen on what is scored:
settings are chosen by the last tenth of the training part (streaming: of its first TUNED_ON entries; River,
which is slow: of its first tenth), and in time order by the first tenth of the stream. The best rates of a
part may not be those of the whole: River changes most, and river_grids.jsonl has what was tried before.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from described_data import Described, movielens
from described_static import STATIC
from described_streams import FIRST, STREAMING, Streaming

from spidertensor import __version__
from spidertensor.evaluation import metrics, protocols
from spidertensor.method import Batch
from spidertensor_study.grid import machine

DATA = ("movielens-100k", "movielens-1m")
HELD_OUT, PREQUENTIAL = "held out", "prequential"
TUNED_ON = 100_000  # training entries at most, held out
ROWS = Path(__file__).with_suffix(".jsonl")

Row = dict[str, Any]


def tuned(model: Streaming, described: Described, columns: str, part: Batch, skipped: int) -> dict[str, Any]:
    """Choose each setting in turn by predicting `part`; its first `skipped` entries are not scored."""
    found, errors = dict(model.start), {}

    def error(settings: dict[str, Any]) -> float:
        which = json.dumps(settings)
        if which not in errors:
            with np.errstate(all="ignore"):
                mean = model.make(described, columns, part.value[:FIRST], **settings).learn(*part[:2])
                lost = metrics.rmse(part.value[skipped:], mean[skipped:])
            errors[which] = lost if np.isfinite(lost) else np.inf
        return errors[which]

    for name, values in model.axes.items():
        if len(values) > 1:
            found[name] = min(values, key=lambda value: error(found | {name: value}))
    return found


def tuned_at_start(
    model: Streaming, described: Described, columns: str, stream: Batch
) -> tuple[dict[str, Any], int]:
    """Settings chosen by predicting the first tenth of a stream, and the length of that."""
    skipped = int(protocols.SKIPPED_SHARE * len(stream.value))
    first = Batch(stream.index[:skipped], stream.value[:skipped])
    return tuned(model, described, columns, first, int(protocols.SKIPPED_SHARE * skipped)), skipped


def streamed(
    model: Streaming, described: Described, columns: str, protocol: str, seed: int
) -> tuple[float, Row]:
    """The error of a model that learns entry by entry, and how it was made."""
    data, began = described.data, process_time()
    train, test = (data.in_time_order(), None) if protocol == PREQUENTIAL else data.split(seed)
    if test is None:
        settings, skipped = tuned_at_start(model, described, columns, train)
    else:
        n, skipped = min(int(model.share * len(train.value)), TUNED_ON), 0
        part = Batch(train.index[:n], train.value[:n])
        settings = tuned(model, described, columns, part, int(0.9 * len(part.value)))
    more = {"random_state": seed} if model.seeded else {}
    ready = process_time()
    stream = model.make(described, columns, train.value[:FIRST], **settings, **more)
    mean = stream.learn(*train[:2])
    times = _times(process_time() - ready, ready - began)
    if test is None:
        return metrics.rmse(train.value[skipped:], mean[skipped:]), {"settings": settings, **times}
    return metrics.rmse(test.value, stream.predict(test.index)), {"settings": settings, **times}


def fitted(label: str, described: Described, columns: str, seed: int) -> tuple[float, Row]:
    train, test = described.data.split(seed)
    began = process_time()
    model = STATIC[label].fit(described, columns, train, seed)
    times = _times(process_time() - began, None)
    return metrics.rmse(test.value, model.predict(test.index)), {"settings": model.settings, **times}


def _times(seconds: float, tuning: float | None) -> Row:
    """tuning: None if the time of choosing is part of the other."""
    chosen = None if tuning is None else round(tuning, 1)
    return {"cpu_seconds": round(seconds, 1), "tuning_cpu_seconds": chosen}


def run(label: str, described: Described, columns: str, protocol: str, seed: int) -> Row:
    package = (STATIC | STREAMING)[label].package
    version = __version__ if package == "spidertensor" else metadata.version(package)
    about: Row = {
        "model": label, "data": described.data.name, "columns": columns, "protocol": protocol, "seed": seed,
        "version": version, "machine": machine(), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    if label in STATIC:
        score, more = fitted(label, described, columns, seed)
    else:
        score, more = streamed(STREAMING[label], described, columns, protocol, seed)
    return about | {"rmse": round(float(score), 5)} | more


def wanted(models: list[str], columns: list[str], protocols_: list[str], seeds: list[int]) -> list[tuple]:
    """What to run: model, columns, protocol, seed; only ours depends on the seed in time order."""
    return [
        (label, given, protocol, seed)
        for protocol in protocols_
        for label in models
        for given in columns
        for seed in seeds
        if given in (STATIC | STREAMING)[label].columns
        if protocol == HELD_OUT or label in STREAMING
        if protocol == HELD_OUT or seed == seeds[0] or STREAMING[label].seeded
    ]


def print_table(rows: list[Row], key: Callable[[Row], tuple[str, ...]]) -> None:
    """Mean over seeds for each kind of row."""
    kinds: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        kinds.setdefault(key(row), []).append(row["rmse"])
    for kind, scores in sorted(kinds.items()):
        print(f"{'  '.join(f'{part:15}' for part in kind)}  {np.mean(scores):.4f}  seeds {len(scores)}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Attributes beside ids: models given the same columns.")
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--models", nargs="+", default=[*STREAMING, *STATIC])
    parser.add_argument("--columns", nargs="+", default=["ids", "attributes"])
    parser.add_argument("--protocols", nargs="+", default=[HELD_OUT, PREQUENTIAL])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file that rows are added to")
    asked = parser.parse_args(arguments)
    rows = read_rows(asked.rows)
    done = {(row["data"], row["model"], row["columns"], row["protocol"], row["seed"]) for row in rows}
    for name in asked.data:
        described = movielens(name)
        for each in wanted(asked.models, asked.columns, asked.protocols, asked.seeds):
            package = (STATIC | STREAMING)[each[0]].package
            if (name, *each) in done or find_spec(package) is None:
                continue
            label, columns, protocol, seed = each
            rows.append(run(label, described, columns, protocol, seed))
            add_row(asked.rows, rows[-1])
    print_table(rows, lambda row: tuple(row[key] for key in ("data", "protocol", "columns", "model")))


def read_rows(path: Path) -> list[Row]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def add_row(path: Path, row: Row) -> None:
    line = json.dumps(row)
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()
