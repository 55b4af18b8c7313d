"""Speed and accuracy of the vectorised engine on the device that JAX finds, one JSON object per line.

    python benchmarks/vectorized.py speed --width 50 256 1024
    python benchmarks/vectorized.py speed --width 1024 --limit 67108864       # gradients in blocks
    python benchmarks/vectorized.py accuracy --data acc dblp --seeds 5
    python benchmarks/vectorized.py accuracy --engine sequential

speed:    microseconds per entry of MovieLens-1M, from NumPy arrays on the host to NumPy arrays on the host
accuracy: one pass over the training entries, then the test set; means over the seeds
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import jax
import numpy as np

from spidertensor.method import Batch, Method, Prediction
from spidertensor.spider import vectorized_updates
from spidertensor.spider.likelihoods import GAUSSIAN, Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.sequential import sequential
from spidertensor.spider.vectorized import vectorized
from spidertensor.study import datasets, metrics

RANK = 8
FIRST = 256  # entries that shift and scale come from


def scaled(train: Batch, likelihood: Likelihood) -> tuple[Batch, float, float]:
    first = train.value[:FIRST]
    shift, scale = (float(first.mean()), float(first.std())) if likelihood.scaled else (0.0, 1.0)
    return Batch(train.index, (train.value - shift) / scale), shift, scale


def seconds(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def device() -> dict:
    found = jax.devices()[0]
    return {"device": found.device_kind, "jax": jax.__version__, "python": platform.python_version()}


def speed(width: int, batch_size: int, entries: int, repeats: int) -> dict:
    data = datasets.load("movielens-1m")
    train, test = data.split(0)
    train, shift, scale = scaled(Batch(train.index[:entries], train.value[:entries]), GAUSSIAN)
    method = vectorized(Network((RANK,) * 2, (width,) * 2), GAUSSIAN, batch_size=batch_size)
    compiling = seconds(lambda: method.update(method.init(0), train))
    times = [seconds(lambda: method.update(method.init(0), train)) for _ in range(repeats)]
    state, update = method.update(method.init(0), train)
    mean = shift + scale * method.predict(state, test.index).mean
    asking = seconds(lambda: method.predict(state, test.index))
    few = Batch(train.index[:batch_size], train.value[:batch_size])
    method.update(state, few)
    calls = [seconds(lambda: method.update(state, few)) for _ in range(20)]
    memory = jax.devices()[0].memory_stats() or {}
    n = len(train.value)
    return {
        "width": width,
        "batch_size": batch_size,
        "gradients_at_once": vectorized_updates.LIMIT,
        "entries": n,
        "us_per_entry": min(times) / n * 1e6,
        "us_per_entry_of_each_run": [t / n * 1e6 for t in times],
        "first_call_seconds": compiling,
        "us_per_entry_in_calls_of_one_batch": float(np.median(calls)) / batch_size * 1e6,
        "predict_us_per_entry": asking / len(test.value) * 1e6,
        "peak_gib": memory.get("peak_bytes_in_use", 0) / 2**30,
        "rmse": metrics.rmse(test.value, mean),
        "rejected": update.rejected,
    }


def build(engine: str, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    network = Network((RANK,) * n_modes)
    if engine == "sequential":
        return sequential(network, likelihood)
    return vectorized(network, likelihood, update=engine, batch_size=batch_size)


def accuracy(name: str, engine: str, seeds: int, batch_size: int) -> dict:
    data = datasets.load(name)
    method = build(engine, len(data.shape), data.likelihood, batch_size)
    scores, times = [], []
    for seed in range(seeds):
        train, test = data.split(seed)
        train, shift, scale = scaled(train, data.likelihood)
        state = method.init(seed)
        began = time.perf_counter()
        state, _ = method.update(state, train)
        times.append(time.perf_counter() - began)
        mean, var, noise = method.predict(state, test.index)
        prediction = Prediction(shift + scale * mean, scale**2 * var, scale**2 * noise)
        metric = metrics.METRICS[data.likelihood.metric]
        scores.append(metric.of(test.value, prediction, data.likelihood))
    return {
        "data": name,
        "engine": engine,
        "batch_size": batch_size,
        "metric": data.likelihood.metric,
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores)),
        "scores": scores,
        "us_per_entry": min(times) / len(train.value) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["speed", "accuracy"])
    parser.add_argument("--width", type=int, nargs="+", default=[50])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[256])
    parser.add_argument("--entries", type=int, default=10**9)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, default=vectorized_updates.LIMIT, help="gradients at once")
    parser.add_argument("--data", nargs="+", default=["movielens-1m", "acc", "anime", "dblp"])
    parser.add_argument("--engine", default="joint", choices=["joint", "scan", "sequential"])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    vectorized_updates.LIMIT = given.limit
    for batch_size in given.batch_size:
        if given.what == "speed":
            rows = (speed(width, batch_size, given.entries, given.repeats) for width in given.width)
        else:
            rows = (accuracy(name, given.engine, given.seeds, batch_size) for name in given.data)
        for row in rows:
            print(json.dumps(device() | row), flush=True)


if __name__ == "__main__":
    main()
