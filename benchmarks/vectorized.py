"""Speed and accuracy of the vectorised engine on the device that JAX finds, one JSON object per line.

    python benchmarks/vectorized.py speed --width 50 256 1024
    python benchmarks/vectorized.py speed --width 1024 --limit 67108864       # gradients in blocks
    python benchmarks/vectorized.py accuracy --data acc dblp --seeds 5
    python benchmarks/vectorized.py accuracy --engine sequential
    python benchmarks/vectorized.py speed --multilinear 32 --clip 4 --node-noise     # hybrid network, robust
    python benchmarks/vectorized.py speed --columns 4       # with four attributes of 20 values for each mode
    python benchmarks/vectorized.py speed --members 4       # a committee

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

from spidertensor.evaluation import metrics
from spidertensor.method import Bags, Batch, Method, Prediction
from spidertensor.spider import vectorized_updates
from spidertensor.spider.committee import committee
from spidertensor.spider.likelihoods import GAUSSIAN, Likelihood
from spidertensor.spider.network import Network, Table
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.spider.vectorized import vectorized
from spidertensor_study import datasets

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


def network(given: argparse.Namespace, n_modes: int, width: int) -> Network:
    tables = tuple(Table(mode, 0.3 / given.columns) for mode in range(n_modes) for _ in range(given.columns))
    sizes = {"bias": given.multilinear > 0, "multilinear": given.multilinear, "tables": tables}
    return Network((RANK,) * n_modes, (width,) * 2, **sizes)


def with_attributes(batch: Batch, columns: int) -> Batch:
    """The entries with this many attributes of each of their nodes, each one of 20 values."""
    if not columns:
        return batch
    n, n_modes = batch.index.shape
    node = np.repeat(batch.index, columns, axis=1)
    table = np.tile(np.arange(n_modes * columns), (n, 1))
    row = node * (2 * table + 3) // 7 % 20
    start = np.arange(n + 1) * n_modes * columns
    return batch._replace(bags=Bags(start, table.ravel(), row.ravel(), np.ones(table.size, np.float32)))


def robust(given: argparse.Namespace) -> dict:
    return {"clip": given.clip, "node_noise": given.node_noise, "memory": given.memory}


def speed(given: argparse.Namespace, width: int, batch_size: int) -> dict:
    data = datasets.load("movielens-1m")
    train, test = data.split(0)
    train = Batch(train.index[: given.entries], train.value[: given.entries])
    train, shift, scale = scaled(train, GAUSSIAN)
    train, test = (with_attributes(each, given.columns) for each in (train, test))
    made = sequential if given.engine == "sequential" else vectorized
    size = {} if given.engine == "sequential" else {"batch_size": batch_size}
    priors = [Prior(factor_var=1 + member / 2) for member in range(given.members)]
    members = [made(network(given, 2, width), GAUSSIAN, prior, **size, **robust(given)) for prior in priors]
    method = members[0] if len(members) == 1 else committee(members, GAUSSIAN, clip=given.clip)
    compiling = seconds(lambda: method.update(method.init(0), train))
    times = [seconds(lambda: method.update(method.init(0), train)) for _ in range(given.repeats)]
    state, update = method.update(method.init(0), train)
    mean = shift + scale * method.predict(state, test.index, test.bags).mean
    asking = seconds(lambda: method.predict(state, test.index, test.bags))
    few = with_attributes(Batch(train.index[:batch_size], train.value[:batch_size]), given.columns)
    method.update(state, few)
    calls = [seconds(lambda: method.update(state, few)) for _ in range(20)]
    memory = jax.devices()[0].memory_stats() or {}
    n = len(train.value)
    return {
        "engine": given.engine,
        "columns": given.columns,
        "width": width,
        "batch_size": batch_size,
        "multilinear": given.multilinear,
        "members": given.members,
        **robust(given),
        "gradients_at_once": vectorized_updates.GRADIENTS_AT_ONCE,
        "entries": n,
        "us_per_entry": min(times) / n * 1e6,
        "us_per_entry_of_each_run": [t / n * 1e6 for t in times],
        "first_call_seconds": compiling,
        "us_per_entry_in_calls_of_one_batch": float(np.median(calls)) / batch_size * 1e6,
        "predict_us_per_entry": asking / len(test.value) * 1e6,
        "peak_gib": memory.get("peak_bytes_in_use", 0) / 2**30,
        "rmse": metrics.rmse(test.value, mean),
        "rejected": update.rejected,
        "clipped": update.clipped,
    }


def build(given: argparse.Namespace, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    net = network(given, n_modes, given.width[0])
    if given.engine == "sequential":
        return sequential(net, likelihood, **robust(given))
    return vectorized(net, likelihood, batch_size=batch_size, **robust(given))


def accuracy(given: argparse.Namespace, name: str, batch_size: int) -> dict:
    data = datasets.load(name)
    method = build(given, len(data.shape), data.likelihood, batch_size)
    scores, times = [], []
    for seed in range(given.seeds):
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
        "engine": given.engine,
        "batch_size": batch_size,
        "multilinear": given.multilinear,
        **robust(given),
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
    parser.add_argument(
        "--limit", type=int, default=vectorized_updates.GRADIENTS_AT_ONCE, help="gradients at once"
    )
    parser.add_argument("--data", nargs="+", default=["movielens-1m", "acc", "anime", "dblp"])
    parser.add_argument("--engine", default="vectorized", choices=["vectorized", "sequential"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--multilinear", type=int, default=0, help="more than 0: the hybrid network")
    parser.add_argument("--clip", type=float)
    parser.add_argument("--node-noise", action="store_true")
    parser.add_argument("--memory", type=float)
    parser.add_argument("--members", type=int, default=1, help="speed: a committee")
    parser.add_argument("--columns", type=int, default=0, help="speed: attributes of each mode")
    given = parser.parse_args()
    vectorized_updates.GRADIENTS_AT_ONCE = given.limit
    for batch_size in given.batch_size:
        if given.what == "speed":
            rows = (speed(given, width, batch_size) for width in given.width)
        else:
            rows = (accuracy(given, name, batch_size) for name in given.data)
        for row in rows:
            print(json.dumps(device() | row), flush=True)


if __name__ == "__main__":
    main()
