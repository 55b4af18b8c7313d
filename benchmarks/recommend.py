"""Time per user and memory of ranking a million candidates, as one JSON object.

    python benchmarks/recommend.py

The default committee of four learns each of a million nodes once, and 200,000 entries more. Memory is the
peak of the process while it ranks, less what it held before.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from spidertensor import SpiderClassifier, SpiderRegressor

NODES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
USERS = 2_000


def stream() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    items = np.concatenate([np.arange(NODES), rng.integers(NODES, size=NODES // 5)])
    users = rng.integers(USERS, size=len(items))
    value = np.sin(items / 7) + np.cos(users) + 0.3 * rng.normal(size=len(items))
    return np.stack([users, items], axis=1), value


def resident() -> int:
    """Bytes that the process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measured(work: Callable[[], Any], users: int, repeats: int = 3) -> dict[str, float]:
    """Seconds per user, the best of some, on the clock and of all cores; and the most memory that was held.

    Where other programs run on the machine the clock says more than the work took.
    """
    work()
    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    times, busy = [], []
    for _ in range(repeats):
        began, began_busy = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - began) / users)
        busy.append((time.process_time() - began_busy) / users)
    done.set()
    watcher.join()
    megabytes = max(peak - before, 0) / 1e6
    seconds = {"seconds_per_user": round(min(times), 3), "core_seconds_per_user": round(min(busy), 3)}
    return seconds | {"megabytes": round(megabytes, 1)}


def main() -> None:
    X, y = stream()
    result: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    result |= {"candidates": NODES, "load_before": os.getloadavg()[0]}  # programs that wanted a core
    model = SpiderRegressor().fit(X, y)
    result["model_megabytes"] = round(resident() / 1e6)
    for explore in ("mean", "thompson", "ucb"):
        one = partial(model.recommend, {0: 5}, over=1, explore=explore, seed=0)
        result[f"{explore}, one user"] = measured(one, 1)
    twenty = {0: list(range(20))}
    result["mean, 20 users"] = measured(lambda: model.recommend_many(twenty, over=1), 20, repeats=1)
    some = np.random.default_rng(1).permutation(NODES)[: NODES // 2]
    result["mean, half of them as candidates"] = measured(
        lambda: model.recommend({0: 5}, over=1, candidates=some), 1
    )
    del model
    model = SpiderClassifier().fit(X, (y > 0).astype(int))
    result["binary values, mean, one user"] = measured(lambda: model.recommend({0: 5}, over=1), 1)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
