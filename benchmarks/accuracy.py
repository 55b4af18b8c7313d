"""One pass over each data set, one JSON line per run: default, paper and paper-tanh presets, five seeds.

SPIDER_DATA=folder python benchmarks/accuracy.py [data set ...]
"""

from __future__ import annotations

import json
import sys

from spidertensor import datasets, evaluate
from spidertensor.engines.sequential import sequential
from spidertensor.network import Network
from spidertensor.posterior import Prior

SEEDS = range(5)
DATASETS = ("movielens-1m", "acc", "anime", "dblp")
PRESETS = {
    "plain": {"activation": "relu", "rho0": 0.9, "curvature": False, "noise_memory": 10_000},
    "paper": {"activation": "relu", "rho0": 0.5, "curvature": True, "noise_memory": None},
    "paper-tanh": {"activation": "tanh", "rho0": 0.5, "curvature": True, "noise_memory": None},
}


def main(names: list[str]) -> None:
    for name in names or DATASETS:
        data = datasets.load(name)
        for preset, p in PRESETS.items():
            scores: dict[str, list[float]] = {}
            for seed in SEEDS:
                method = sequential(
                    Network((8,) * len(data.shape), activation=p["activation"]),
                    "probit" if data.binary else "gaussian",
                    Prior(rho0=p["rho0"]),
                    curvature=p["curvature"],
                    noise_memory=p["noise_memory"],
                )
                for test in data.tests or ("paper",):
                    train, held = data.split(seed, test)
                    *_, row = evaluate.held_out(
                        method, train, held, binary=data.binary, seed=seed, scaled=not data.binary
                    )
                    scores.setdefault(test, []).append(row["score"])
            for test, values in scores.items():
                mean = sum(values) / len(values)
                line = {"dataset": name, "preset": preset, "test": test, "mean": round(mean, 4)}
                print(json.dumps(line | {"scores": [round(v, 4) for v in values]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
