"""Which settings suit the static methods that have a learning rate, on each data set.

    SPIDER_DATA=folder python benchmarks/static_settings.py [METHOD:DATA ...]

Learns the training entries of split 0 at rank 8 and prints what the method itself says of how well that went,
as JSON; the test part of the split is not looked at. For CoSTCo that is the loss of the tenth of them that it
holds back anyway, the lowest of all epochs, for GPTF minus its bound on the evidence per entry, in a run of
25 epochs, a quarter of the default. static_settings.jsonl has what came out on an H200 with version 0.2, for
CoSTCo on acc, anime and dblp (1e-2 for 64 channels on dblp alone, and on a CPU), for GPTF on all but
movielens-100k; `registry.METHODS` has the rates in use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import product
from time import perf_counter
from typing import Any

from spidertensor.method import Batch, Method
from spidertensor.scaling import Scaling
from spidertensor.spider.likelihoods import Likelihood
from spidertensor_study import datasets
from spidertensor_study.competitors.costco import costco
from spidertensor_study.competitors.gptf import gptf

DATA = ("movielens-100k", "movielens-1m", "acc", "anime", "dblp")
RANK, SEED, BATCH_SIZE = 8, 0, 256


def candidates(name: str, n_modes: int, likelihood: Likelihood) -> Iterator[tuple[dict[str, Any], Method]]:
    if name == "costco":
        for channels, rate in product((RANK, 64), (3e-4, 1e-3, 3e-3, 1e-2)):
            settings = {"channels": channels, "learning_rate": rate}
            yield settings, costco(n_modes, likelihood, rank=RANK, **settings)
    else:
        for rate in (3e-3, 1e-2, 3e-2):
            settings = {"learning_rate": rate, "epochs": 25}
            yield settings, gptf(n_modes, likelihood, rank=RANK, **settings)


def loss(name: str, state: Any) -> float | None:
    """None: what was learned was not finite."""
    if state.counts.refused == state.counts.entries:
        return None
    return round(float(state.held_back_loss if name == "costco" else -state.bound[-1]), 5)


def main(pairs: list[str]) -> None:
    for pair in pairs:
        name, _, of = pair.partition(":")
        data = datasets.load(of)
        train, _ = data.split(SEED)
        if data.likelihood.scaled:  # as the harness does it
            train = Batch(train.index, Scaling.of(train.value[:BATCH_SIZE]).scaled(train.value))
        for settings, method in candidates(name, len(data.shape), data.likelihood):
            began = perf_counter()
            state, _ = method.update(method.init(SEED), train)
            seconds = perf_counter() - began
            said = {"loss": loss(name, state), "seconds": round(seconds)}
            print(json.dumps({"method": name, "data": of, **settings, **said}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [f"{name}:{of}" for name in ("costco", "gptf") for of in DATA])
