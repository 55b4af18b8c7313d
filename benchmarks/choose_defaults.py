"""How the hybrid network's default settings were chosen: prequential scores of the training streams alone.

    SPIDER_DATA=folder python benchmarks/choose_defaults.py SETTINGS [first seed] > rows.jsonl

Draws SETTINGS random settings (setting 0 is the plain network) and streams the training part of each data
set through each, once. One JSON line per setting and, per data set, the prequential score (RMSE, or AUC for
binary values; first tenth left out) and the same of the second half alone, which says more about a model that
has learned. The test part of a split is thrown away unseen.

With "grid" for SETTINGS: the grid around the best of 32 random settings, from which the default was taken.
"""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np

from spidertensor.method import Batch
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.study import datasets, protocols

STREAMS = ("movielens-1m", "movielens-100k", "acc", "anime", "dblp", "flights")
PLAIN = {"bias": False, "multilinear": 0}
CHOICES = {
    "multilinear": (0, 8, 16, 32),
    "multilinear_var": (0.03, 0.1, 0.3),
    "multilinear_start": (0.01, 0.03, 0.1),
    "bias_var": (0.005, 0.02, 0.1),
    "factor_var": (0.3, 1.0),
    "slab_var": (0.3, 1.0),
}


GRID = {
    "multilinear": (8, 16, 32, 48),
    "multilinear_var": (0.05, 0.08, 0.1, 0.12, 0.2, 0.3),
    "multilinear_start": (0.01, 0.03),
    "bias_var": (0.005, 0.02),
}


def grid() -> list[dict]:
    cells = itertools.product(*GRID.values())
    return [PLAIN] + [{"bias": True} | dict(zip(GRID, cell, strict=True)) for cell in cells]


def settings(n: int) -> list[dict]:
    rng = np.random.default_rng(0)
    drawn = [{name: rng.choice(values).item() for name, values in CHOICES.items()} for _ in range(n - 1)]
    return [PLAIN] + [{"bias": True} | each for each in drawn]


def stream(data: datasets.Dataset, seed: int) -> Batch:
    return data.in_time_order() if data.name == "flights" else data.split(seed)[0]


def score(data: datasets.Dataset, entries: Batch, setting: dict, seed: int) -> tuple[float, float]:
    prior = {name: value for name, value in setting.items() if name not in ("bias", "multilinear")}
    method = sequential(
        Network((8,) * len(data.shape), bias=setting["bias"], multilinear=setting["multilinear"]),
        data.likelihood,
        Prior(**prior),
    )
    *_, row = protocols.prequential(method, entries, likelihood=data.likelihood, seed=seed, scaled=True, at=2)
    return round(row["score"], 5), round(row["window_score"], 5)


def main(wanted: list[dict], seed: int) -> None:
    streams = {name: datasets.load(name) for name in STREAMS}
    ordered = {name: stream(data, seed) for name, data in streams.items()}
    for number, setting in enumerate(wanted):
        scores = {name: score(streams[name], ordered[name], setting, seed) for name in STREAMS}
        print(json.dumps({"number": number, "seed": seed, "setting": setting, "scores": scores}), flush=True)


if __name__ == "__main__":
    wanted = grid() if sys.argv[1] == "grid" else settings(int(sys.argv[1]))
    main(wanted, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
