"""How soon is the model ahead of additive biases? movielens-100k, as JSON: RMSE on the held-out tenth after
the first 1,000, 10,000 and 30,000 training entries in random order, and after all of them in time order.

    SPIDER_DATA=folder python benchmarks/small_data.py [number of seeds]
"""

from __future__ import annotations

import json
import sys

import numpy as np

from spidertensor.evaluation import metrics
from spidertensor.method import Batch
from spidertensor.scaling import Scaling
from spidertensor_study import datasets
from spidertensor_study.registry import METHODS

METHOD_NAMES = ("spider", "spider-single", "biases", "mean")
FIRST = (1_000, 10_000, 30_000)


def error(name: str, train: Batch, test: Batch, seed: int) -> float:
    entry, data = METHODS[name], datasets.load("movielens-100k")
    scaling = Scaling.of(train.value[:256]) if entry.scaled else Scaling()
    method = entry.build(8, len(data.shape), data.likelihood, 256)
    state, _ = method.update(method.init(seed), Batch(train.index, scaling.scaled(train.value)))
    return metrics.rmse(test.value, scaling.user_units(*method.predict(state, test.index)).mean)


def main(seeds: int) -> None:
    data = datasets.load("movielens-100k")
    ordered = data.in_time_order()
    for name in METHOD_NAMES:
        found: dict[str, list[float]] = {}
        for seed in range(seeds):
            train, test = data.split(seed)
            for n in FIRST:
                first = Batch(train.index[:n], train.value[:n])
                found.setdefault(f"first {n}", []).append(error(name, first, test, seed))
            held = np.random.default_rng(seed).random(len(ordered.value)) < 0.1
            train, test = (Batch(ordered.index[part], ordered.value[part]) for part in (~held, held))
            found.setdefault("time order", []).append(error(name, train, test, seed))
        means = {what: round(float(np.mean(errors)), 4) for what, errors in found.items()}
        print(json.dumps({"method": name, "seeds": seeds, "rmse": means}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
