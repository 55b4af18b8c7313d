"""Speed and memory of the core, as one JSON object: one model on one core, then the committee. Ratios are
taken inside this one run.

    OMP_NUM_THREADS=1 python benchmarks/speed.py

Everything goes through SpiderRegressor: checks, id mapping, scaling and refinement are in the figures.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from spidertensor import Inference, SpiderRegressor
from spidertensor.checkpoint import flatten
from spidertensor.estimator import inputs
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.method import Batch
from spidertensor.spider.posterior import trim

N = 200_000
PLAIN = {"bias": False, "multilinear": 0}  # the paper's network
BATCH = 256
# per weight: mean and p forward (2 + 2), backward (2), update (var*g 2, mean 2, var 2)
OPERATIONS_PER_WEIGHT = 12


def best(work: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def stream(nodes: int, modes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.integers(0, nodes, (N, modes))
    return X, np.sin(X.sum(axis=1)) + 0.1 * rng.normal(size=N)


def learn_time(X: np.ndarray, y: np.ndarray, model: SpiderRegressor) -> float:
    """Microseconds per entry, in batches of 256, once all nodes are known."""
    model.fit(X, y)

    def work() -> None:
        for i in range(0, N, BATCH):
            model.partial_fit(X[i : i + BATCH], y[i : i + BATCH])

    return best(work) / N * 1e6


def one(**settings: Any) -> SpiderRegressor:
    return SpiderRegressor(committee=1, **settings)


def committee_ratios(X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """What four models cost more than one, in calls of 20,000 entries, long enough for threads."""
    every = os.sched_getaffinity(0)

    def seconds(model: SpiderRegressor) -> float:
        model.fit(X, y)
        return best(
            lambda: [model.partial_fit(X[i : i + 20_000], y[i : i + 20_000]) for i in range(0, N, 20_000)]
        )

    os.sched_setaffinity(0, {min(every)})
    alone, four = seconds(one()), seconds(SpiderRegressor())
    os.sched_setaffinity(0, every)
    return {
        "committee_us": four / N * 1e6,
        "committee_over_one_model": four / alone,
        f"committee_over_one_model_on_{len(every)}_cores": seconds(SpiderRegressor()) / alone,
    }


def shares(X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """How much of the default's time per entry each part of the model takes: what is saved without it."""
    whole = learn_time(X, y, one())
    without = {
        "robust": learn_time(X, y, one(inference=Inference(clip=None, node_noise=False))),
        "deep_network": learn_time(X, y, one(hidden=(), rank=1)),
        "refinement": learn_time(X, y, one(batch_size=10**9, scaling=(0.0, 1.0))),
    }
    found = {f"share_of_{name}": 1 - time / whole for name, time in without.items()}
    model = one().fit(X, y)
    method, state = model._fitted().model.members[0].method, model._fitted().state.members[0]
    index = to_index(model._fitted().nodes, inputs.columns(X), add=False)
    batches = [Batch(index[i : i + BATCH], y[i : i + BATCH]) for i in range(0, N, BATCH)]

    def engine() -> None:
        for batch in batches:
            method.update(state, batch)

    found["share_of_estimator"] = 1 - best(engine) / N * 1e6 / whole
    found["robust_over_plain_step"] = whole / without["robust"]
    return {"learn_default_us": whole} | found


def sgemm_rate() -> float:
    a = np.ones((1024, 1024), np.float32)
    return 2 * 1024**3 / best(lambda: a @ a, 10)


def child(code: str, **env: str) -> float:
    """Seconds that a fresh interpreter says it took."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


FIRST_CALL = """
import time, numpy as np
from spidertensor import SpiderRegressor
model, X = SpiderRegressor(scaling=(0, 1)), np.zeros((4, 2), int)
start = time.perf_counter(); model.fit(X, X[:, 0]); model.predict(X); print(time.perf_counter() - start)
"""
IMPORT = "import time; start = time.perf_counter(); import spidertensor; print(time.perf_counter() - start)"


def main() -> None:
    few, many = stream(1_000), stream(10_000)
    plain, paper = one(**PLAIN), SpiderRegressor.paper()
    learn = learn_time(*few, plain)
    weights = sum(w.mean.size for w in plain._fitted().state.members[0].posterior.weights)
    rate = sgemm_rate()
    nodes = [NodeIndex(), NodeIndex()]

    def mapping() -> None:
        for i in range(0, N, BATCH):
            to_index(nodes, inputs.columns(few[0][i : i + BATCH]), add=True)

    mapping()
    state = trim(plain._fitted().state.members[0])
    elements = weights + sum(factor.mean.size for factor in state.posterior.factors)
    with tempfile.TemporaryDirectory() as cache:
        cold = child(FIRST_CALL, NUMBA_CACHE_DIR=cache)
        warm = child(FIRST_CALL, NUMBA_CACHE_DIR=cache)
    result = {
        "machine": platform.processor() or platform.machine(),
        "learn_us": learn,
        "learn_curvature_us": learn_time(*few, paper),
        **shares(*few),
        **committee_ratios(*few),
        "learn_twelve_modes_us_per_mode": learn_time(*stream(1_000, 12), one()) / 12,
        "learn_two_modes_us_per_mode": learn_time(*few, one()) / 2,
        "learn_tanh_us": learn_time(*few, one(activation="tanh", **PLAIN)),
        "learn_three_modes_us": learn_time(*stream(1_000, 3), one(**PLAIN)),
        "learn_three_modes_curvature_us": learn_time(*stream(1_000, 3), SpiderRegressor.paper()),
        "learn_10x_nodes_ratio": learn_time(*many, one(**PLAIN)) / learn,
        "id_mapping_us": best(mapping) / N * 1e6,
        "predict_mean_and_var_us": best(lambda: plain.predict(few[0], return_std=True)) / N * 1e6,
        "sgemm_gflops": rate / 1e9,
        "share_of_sgemm_counting_dead_units": OPERATIONS_PER_WEIGHT * weights / (learn * 1e-6) / rate,
        "first_call_cold_s": cold,
        "first_call_cached_s": warm,
        "import_s": child(IMPORT),
        "state_bytes_per_element": sum(a.nbytes for name, a in flatten(state).items() if "posterior" in name)
        / elements,
        "site_bytes_per_weight": sum(a.nbytes for name, a in flatten(state).items() if "sites" in name)
        / weights,
    }
    print(
        json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in result.items()}, indent=1)
    )


if __name__ == "__main__":
    main()
