"""Counts as counts, against a Gaussian model of the counts themselves and one of log(1 + count).

    python benchmarks/counts.py [synthetic] [acc] [flights] [--entries N] [--committee M]

Prequential: every entry is predicted before it is learned, and the first tenth is not scored. A line of JSON
for each data set and model:

    log_score    mean log probability of the count. A Gaussian's probability of k is what it gives to
                 (k - 1/2, k + 1/2), in the values that it learned; all below 1/2 counts as 0: kind to it
    rmse, mae    of the mean of the count. For log(1 + count) it is that of the log normal; `rmse_of_median`
                 has exp(mean) - 1 in its place
    microseconds per entry, all models in one run on one machine, without compiling
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from spidertensor import SpiderRegressor
from spidertensor.evaluation.dataset import columns, open_zip
from spidertensor.method import Batch, Update
from spidertensor.spider.likelihoods import COUNT
from spidertensor_study import datasets

Floats = NDArray[np.float64]
SKIPPED = 0.1
WARM = 512  # entries that a model learns before its time is taken


def synthetic(entries: int) -> Batch:
    """Dispersion 0.3, mean exp(1 + f) of a random network f."""
    return datasets.synthetic(n_entries=entries, likelihood=COUNT).train


def acc(entries: int) -> Batch:
    """Accesses, whose data set has log(1 + count), in a random order; half of them zeros."""
    train, _ = datasets.load("acc").split(0)
    return Batch(train.index[:entries], np.rint(np.expm1(train.value[:entries])))


def flights(entries: int) -> Batch:
    """Flights of each route and hour on each day of 2013, in time order: zeros are the days without one. The
    modes are origin, destination, hour and weekday; of routes and hours with a flight a week on average."""
    with open_zip(datasets.locate("flights")) as archive, archive.open("flights.csv") as file:
        month, day, hour, origin, dest = columns(file, "month day hour origin dest")
    first = np.datetime64("2013-01-01")
    months = first.astype("datetime64[M]") + (month.astype(int) - 1)
    date = (months.astype("datetime64[D]") - first).astype(int) + day.astype(int) - 1
    keys = [np.unique(column, return_inverse=True)[1] for column in (origin, dest, hour)]
    cell = np.ravel_multi_index(keys, [each.max() + 1 for each in keys])
    cells, place = np.unique(cell, return_inverse=True)
    count = np.zeros((365, len(cells)))
    np.add.at(count, (date, place), 1)
    often = count.sum(axis=0) >= 52
    index = np.stack(np.unravel_index(cells[often], [each.max() + 1 for each in keys]), axis=1)
    weekday = (np.arange(365) + 1) % 7
    index = np.column_stack([np.tile(index, (365, 1)), np.repeat(weekday, len(index))])
    return Batch(np.ascontiguousarray(index)[:entries], count[:, often].ravel()[:entries])


def log_mass(lower: Floats, upper: Floats) -> Floats:
    """log(Phi(upper) - Phi(lower)), in both tails."""
    flip = lower > 0
    lower, upper = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    high, low = log_ndtr(upper), log_ndtr(lower)
    return high + np.log1p(-np.exp(np.minimum(low - high, -1e-300)))


def as_counts(update: Update, y: Floats) -> tuple[Floats, Floats, Floats]:
    mean = COUNT.expected(update.mean, update.var)
    return update.log_evidence, mean, mean


def as_values(update: Update, y: Floats) -> tuple[Floats, Floats, Floats]:
    std = np.sqrt(update.var + update.noise)
    lower = np.where(y > 0, (y - 0.5 - update.mean) / std, -np.inf)
    return log_mass(lower, (y + 0.5 - update.mean) / std), update.mean, update.mean


def as_logs(update: Update, y: Floats) -> tuple[Floats, Floats, Floats]:
    var = update.var + update.noise
    lower = np.where(y > 0, (np.log1p(np.maximum(y - 0.5, 0)) - update.mean) / np.sqrt(var), -np.inf)
    upper = (np.log1p(y + 0.5) - update.mean) / np.sqrt(var)
    mean = np.expm1(np.minimum(update.mean + var / 2, 200.0))
    return log_mass(lower, upper), mean, np.expm1(update.mean)


MODELS = {
    "count": ({"likelihood": "count"}, lambda y: y, as_counts),
    "gaussian": ({}, lambda y: y, as_values),
    "gaussian of log1p": ({}, np.log1p, as_logs),
}
DATA = {"synthetic": (synthetic, 100_000), "acc": (acc, 300_000), "flights": (flights, 300_000)}


def measured(name: str, entries: Batch, committee: int) -> dict[str, float]:
    settings, to_value, read = MODELS[name]
    model, (index, y, *_) = SpiderRegressor(**settings, committee=committee), entries
    value = to_value(y)
    first = model.learn(index[:WARM], value[:WARM])
    began = perf_counter()
    rest = model.learn(index[WARM:], value[WARM:])
    seconds = perf_counter() - began
    update = Update(*(np.concatenate(pair) for pair in zip(first[:4], rest[:4], strict=True)), rejected=0)
    log_score, mean, median = read(update, y)
    scored = slice(int(SKIPPED * len(y)), None)
    error = (y - mean)[scored]
    return {
        "log_score": float(log_score[scored].mean()),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.abs(error).mean()),
        "rmse_of_median": float(np.sqrt(np.mean((y - median)[scored] ** 2))),
        "negative": float((mean[scored] < 0).mean()),
        "microseconds": 1e6 * seconds / (len(y) - WARM),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--entries", type=int)
    parser.add_argument("--committee", type=int, default=4)
    given = parser.parse_args()
    for data in given.data:
        load, usual = DATA[data]
        entries = load(given.entries or usual)
        about = {"data": data, "entries": len(entries.value), "mean": float(entries.value.mean())}
        about |= {"zeros": float((entries.value == 0).mean()), "committee": given.committee}
        for name in MODELS:
            print(json.dumps(about | {"model": name} | measured(name, entries, given.committee)), flush=True)


if __name__ == "__main__":
    main()
