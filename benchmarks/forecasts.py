"""What forecasts cost, in time and memory: one JSON object.

    OMP_NUM_THREADS=1 python benchmarks/forecasts.py

Microseconds per entry, the median of rounds: CPU time in Python, wall time over HTTP. The first call is
apart, since it loads kernels from disk. Over HTTP one client sends requests to a `spider serve` of its own:
`predict?remember=1h` and `learn` with what that answered, against `learn` alone. Models have the default
committee.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from spidertensor import SpiderRegressor

BEFORE, ROUNDS = 20_000, 15
SIZES = (1, 256)  # entries per call
REQUEST_ROWS, REQUESTS = (1, 1000), (200, 20)


def entries(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.integers((943, 1682), size=(n, 2))
    return X, 3.5 + np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.3 * rng.normal(size=n)


def seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def waited(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_python() -> dict[str, Any]:
    X, y = entries(BEFORE)
    model = SpiderRegressor().partial_fit(X, y)
    rows = slice(0, 256)
    first = {
        "forecast": seconds(lambda: model.forecast(X[rows])),
        "learn": seconds(lambda: model.learn(X[rows], y[rows])),
    }
    said = model.forecast(X[rows])
    first["learn with it"] = seconds(lambda: model.learn(X[rows], y[rows], forecast=said))
    found: dict[str, Any] = {"first call of 256 entries, ms": {name: 1e3 * s for name, s in first.items()}}
    for size in SIZES:
        times: dict[str, list[float]] = {"predict": [], "forecast": [], "learn": [], "learn with it": []}
        for each in range(ROUNDS * (40 if size == 1 else 1)):
            rows = slice(each * size, (each + 1) * size)
            times["predict"].append(seconds(lambda rows=rows: model.predict(X[rows])))
            times["forecast"].append(seconds(lambda rows=rows: model.forecast(X[rows])))
            said = model.forecast(X[rows])
            times["learn"].append(seconds(lambda rows=rows: model.learn(X[rows], y[rows])))
            times["learn with it"].append(
                seconds(lambda rows=rows, said=said: model.learn(X[rows], y[rows], forecast=said))
            )
        if size == 1:
            ids = [tuple(each) for each in X[: 40 * ROUNDS].tolist()]
            times |= {"learn_one": [], "learn_one with it": []}
            for pair, value in zip(ids, y.tolist(), strict=False):
                said = model.forecast([pair])
                times["learn_one"].append(seconds(lambda p=pair, v=value: model.learn_one(p, v)))
                times["learn_one with it"].append(
                    seconds(lambda p=pair, v=value, f=said: model.learn_one(p, v, forecast=f))
                )
        median = {name: round(1e6 * statistics.median(s) / size, 1) for name, s in times.items()}
        found[f"calls of {size}, us per entry"] = median
    forecast = model.forecast(X[:10_000])
    found["bytes per entry"] = {
        "a Forecast": forecast.numbers.nbytes / len(forecast),
        "as JSON": len(json.dumps(forecast.to_dict())) / len(forecast),
    }
    return found


def over_http() -> dict[str, Any]:
    found: dict[str, Any] = {}
    X, y = entries(BEFORE + 40_000)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spidertensor", "serve", "--port", "0", "--model", "m.spider"]
        command += ["--modes", "user,item", "--value", "y"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split(" at ")[1].split()[0]

            def posted(path: str, body: list[dict[str, Any]]) -> Any:
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
                with urllib.request.urlopen(request) as answer:
                    return json.load(answer)

            def sent(rows: slice) -> list[dict[str, Any]]:
                pairs = zip(X[rows].tolist(), y[rows].tolist(), strict=True)
                return [{"user": user, "item": item, "y": value} for (user, item), value in pairs]

            _wait(url)
            for start in range(0, BEFORE, 5000):
                posted("/v1/learn", sent(slice(start, start + 5000)))
            kept, store = 0, Path(folder, "m.spider.forecasts")
            for n, requests in zip(REQUEST_ROWS, REQUESTS, strict=True):
                times: dict[str, list[float]] = {"learn": [], "remember": [], "learn with it": []}
                for each in range(requests):
                    rows = sent(slice(BEFORE + each * n, BEFORE + (each + 1) * n))
                    times["learn"].append(waited(lambda rows=rows: posted("/v1/learn", rows)))
                    began = time.perf_counter()
                    said = posted("/v1/predict?remember=1h", rows)["predictions"]
                    times["remember"].append(time.perf_counter() - began)
                    named = zip(rows, said, strict=True)
                    rows = [row | {"_forecast": one["forecast"]} for row, one in named]
                    times["learn with it"].append(waited(lambda rows=rows: posted("/v1/learn", rows)))
                kept += n * requests
                times["predict"] = [waited(lambda rows=rows: posted("/v1/predict", rows)) for _ in range(20)]
                median = {name: round(1e6 * statistics.median(s) / n, 1) for name, s in times.items()}
                found[f"requests of {n}, us per entry"] = median
            size = sum(each.stat().st_size for each in store.parent.glob(f"{store.name}*"))
            found["bytes per entry remembered on disk"] = round(size / kept)
            server.terminate()
    return found


def _wait(url: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health/ready"):
                return
        except OSError:
            time.sleep(0.1)


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps({"cores": os.cpu_count()} | in_python() | {"HTTP": over_http()}, indent=2))


if __name__ == "__main__":
    main()
