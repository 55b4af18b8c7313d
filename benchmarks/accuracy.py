"""One pass over each data set, one JSON line per method and test set: the mean of five seeds.

SPIDER_DATA=folder python benchmarks/accuracy.py [data set ...]
"""

from __future__ import annotations

import json
import sys

from spidertensor.evaluation import protocols
from spidertensor_study import datasets
from spidertensor_study.registry import METHODS

SEEDS = range(5)
DATASETS = ("movielens-1m", "acc", "anime", "dblp")
NAMES = ("spider", "spider-plain", "spider-paper", "spider-paper-tanh")


def main(names: list[str]) -> None:
    for name in names or DATASETS:
        data = datasets.load(name)
        for name_of_method in NAMES:
            scores: dict[str, list[float]] = {}
            for seed in SEEDS:
                method = METHODS[name_of_method].build(8, len(data.shape), data.likelihood, 256)
                for test in data.tests or ("paper",):
                    train, held = data.split(seed, test)
                    *_, row = protocols.held_out(
                        method, train, held, likelihood=data.likelihood, seed=seed, scaled=True
                    )
                    scores.setdefault(test, []).append(row["score"])
            for test, values in scores.items():
                mean = sum(values) / len(values)
                line = {"dataset": name, "method": name_of_method, "test": test, "mean": round(mean, 4)}
                print(json.dumps(line | {"scores": [round(v, 4) for v in values]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
