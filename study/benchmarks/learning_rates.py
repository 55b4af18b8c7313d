"""Which learning rate of the paper's list is best for the SVB family, on each data set.

    SPIDER_DATA=folder python benchmarks/learning_rates.py rows.jsonl [METHOD:DATA ...]

Streams the first tenth of the training entries (seed 0, rank 8, batches of 256, 100 epochs each) with all
rates side by side, each entry predicted before its batch is learned; the test part of a split is not looked
at. One row per rate, in the format of `spider experiment`. `registry.METHODS` has what came out best.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from spidertensor.evaluation import protocols
from spidertensor.method import Batch, Method, Update
from spidertensor.scaling import Scaling
from spidertensor.spider.network import Network
from spidertensor_study import datasets, grid, rows
from spidertensor_study.competitors import gp, gp_method, ss_gptf, svb_dtf, svb_gptf
from spidertensor_study.competitors.svb_dtf import RATES
from spidertensor_study.datasets import Dataset
from spidertensor_study.registry import HIDDEN

METHODS = ("svb-dtf", "svb-dtf-tanh", "svb-gptf", "ss-gptf")
DATA = ("movielens-100k", "movielens-1m", "acc", "anime", "dblp")
RANK, BATCH_SIZE, EPOCHS, SEED, TENTH = 8, 256, 100, 0, 0.1


def settings_of(name: str, data: str) -> rows.Settings:
    settings = {"method": name, "data": data, "protocol": "first-tenth", "rank": RANK, "seed": SEED}
    return settings | {"batch_size": BATCH_SIZE, "epochs": EPOCHS, "at": 1, "entries": None}


def first_tenth(data: Dataset) -> Batch:
    train, _ = data.split(SEED)
    n = int(TENTH * len(train.value))
    return Batch(train.index[:n], train.value[:n])


def side_by_side(name: str, data: Dataset, stream: Batch) -> Iterator[Update]:
    """What each rate predicted, for values that are scaled as the harness does it."""
    if data.likelihood.scaled:
        stream = Batch(stream.index, Scaling.of(stream.value[:BATCH_SIZE]).scaled(stream.value))
    likelihood, n_modes = data.likelihood, len(data.shape)
    if name.startswith("svb-dtf"):
        activation = "tanh" if name.endswith("tanh") else "relu"
        network = Network((RANK,) * n_modes, HIDDEN, activation)
        all_rates, _ = svb_dtf.side_by_side(
            network,
            likelihood,
            stream,
            learning_rates=RATES,
            seeds=[SEED],
            epochs=EPOCHS,
            batch_size=BATCH_SIZE,
        )
        for number in range(len(RATES)):
            parts = (part[number, 0] for part in all_rates[:4])
            lost = all_rates.rejected, all_rates.refused  # of all rates together
            yield Update(*parts, *lost)
    else:
        algorithm = {"svb-gptf": svb_gptf, "ss-gptf": ss_gptf}[name].ALGORITHM
        settings = gp.GPSettings(n_modes, likelihood, RANK, 128, EPOCHS, BATCH_SIZE)
        yield from gp_method.side_by_side(settings, algorithm, stream, RATES, SEED)


def replay(update: Update) -> Method:
    """Predicts what was predicted: so that the harness scores it."""

    def said(at: int, batch: Batch) -> tuple[int, Update]:
        part = slice(at, at + len(batch.value))
        return part.stop, Update(*(each[part] for each in update[:4]), rejected=0)

    return Method(lambda seed: 0, said, lambda state, index: None)  # pyright: ignore[reportArgumentType]


def main(path: Path, pairs: list[str]) -> None:
    with rows.opened(path) as written:
        for pair in pairs or [f"{name}:{data}" for data in DATA for name in METHODS]:
            name, _, of = pair.partition(":")
            runs = [settings_of(name, of) | {"learning_rate": rate} for rate in RATES]
            missing = written.missing(runs)
            if not missing:
                continue
            data = datasets.load(of)
            stream = first_tenth(data)
            for run, update in zip(runs, side_by_side(name, data, stream), strict=True):
                if run not in missing:
                    continue
                (score,) = protocols.prequential(
                    replay(update), stream, likelihood=data.likelihood, batch_size=BATCH_SIZE, scaled=True
                )
                # the replay knows neither the time of learning nor what was rejected
                said = dict.fromkeys(("seconds", "entries_per_second")) | {
                    "rejected": update.rejected,
                    "refused": update.refused,
                }
                row = grid.row_of(run, scores={"stream": score | said})
                written.append({"experiment": "tuning", "jobs": len(RATES)} | row)
                print(name, of, run["learning_rate"], score["score"], score["log_density"], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
