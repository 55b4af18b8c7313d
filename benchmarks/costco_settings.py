"""Which learning rate and how many channels suit CoSTCo, on each data set.

    SPIDER_DATA=folder python benchmarks/costco_settings.py [DATA ...]

Learns the training entries of split 0 at rank 8 and prints the loss of the tenth of them that the method
holds back anyway, the lowest of all epochs; the test part of the split is not looked at. The defaults of
`costco` are what came out best.
"""

from __future__ import annotations

import sys
from itertools import product
from time import perf_counter

from spidertensor.baselines.costco import costco
from spidertensor.method import Batch
from spidertensor.scaling import Scaling
from spidertensor.study import datasets

DATA = ("movielens-100k", "movielens-1m", "acc", "anime", "dblp")
RATES = (3e-4, 1e-3, 3e-3)
RANK, SEED, BATCH_SIZE = 8, 0, 256
CHANNELS = (RANK, 64)


def main(names: list[str]) -> None:
    for name in names:
        data = datasets.load(name)
        train, _ = data.split(SEED)
        if data.likelihood.scaled:  # as the harness does it
            train = Batch(train.index, Scaling.of(train.value[:BATCH_SIZE]).scaled(train.value))
        for channels, rate in product(CHANNELS, RATES):
            method = costco(
                len(data.shape), data.likelihood, rank=RANK, channels=channels, learning_rate=rate
            )
            began = perf_counter()
            state, _ = method.update(method.init(SEED), train)
            loss, seconds = float(state.held_back_loss), perf_counter() - began
            print(
                f"{name:15} channels {channels:3} rate {rate:g} loss {loss:.5f} in {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or list(DATA))
