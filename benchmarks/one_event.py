"""One event at a time, beside River, and the start of a script: one JSON object. Ratios are of this one run.

    pip install 'spidertensor[peers]'
    OMP_NUM_THREADS=1 python benchmarks/one_event.py

Microseconds of CPU time per call, over rounds: the mean, with all that happens now and then, and the fastest.
In a round every model learns and predicts the same entries, so whatever else the machine does hits all. Peers
know two modes, so there are two: users and items. Models have learned 20,000 entries before, so that nearly
all nodes are known.

River's FMRegressor one-hot encodes the strings of a dict; BiasedMF wants "user" and "item" by keyword.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from spidertensor import SpiderClassifier, SpiderRegressor

BEFORE, ROUNDS, ROUND = 20_000, 40, 50
USERS, ITEMS = 943, 1682
Calls = tuple[Callable[[str, str, float], Any], Callable[[str, str], Any]]  # learn, predict

START = """
import time
began = time.perf_counter(), time.process_time()
from spidertensor import SpiderRegressor
imported = time.perf_counter(), time.process_time()
import numpy as np
X = np.random.default_rng(0).integers(100, size=(1000, 2))
SpiderRegressor().fit(X, np.sin(X).sum(axis=1))
used = time.perf_counter(), time.process_time()
print(*(b - a for a, b in zip(began, imported)), *(b - a for a, b in zip(imported, used)))
"""


def entries(n: int) -> list[tuple[str, str, float]]:
    rng = np.random.default_rng(0)
    users, items = rng.integers(USERS, size=n), rng.integers(ITEMS, size=n)
    value = 3.5 + np.sin(users) + np.cos(items) * np.sin(users / 7) + 0.3 * rng.normal(size=n)
    return [(f"u{u}", f"i{i}", float(v)) for u, i, v in zip(users, items, value, strict=True)]


def ours(before: list[tuple[str, str, float]], **settings: Any) -> dict[str, Calls]:
    X, y = [entry[:2] for entry in before], [entry[2] for entry in before]
    found: dict[str, Calls] = {}
    for committee in (1, 4):
        model = SpiderRegressor(committee=committee, **settings).fit(X, y)
        found[f"SpiderRegressor, committee={committee}"] = (
            lambda u, i, v, model=model: model.learn_one((u, i), v),
            lambda u, i, model=model: model.predict_one((u, i)),
        )
        found[f"SpiderRegressor, committee={committee}, learn and predict"] = (
            lambda u, i, v, model=model: model.learn([(u, i)], [v]),
            lambda u, i, model=model: model.predict([(u, i)]),
        )
        labels = SpiderClassifier(committee=committee, **settings).fit(X, [float(v > 3.5) for v in y])
        found[f"SpiderClassifier, committee={committee}"] = (
            lambda u, i, v, model=labels: model.learn_one((u, i), float(v > 3.5)),
            lambda u, i, model=labels: model.predict_one((u, i)),
        )
    return found


def rivers(before: list[tuple[str, str, float]]) -> dict[str, Calls]:
    try:
        from river import facto, linear_model, preprocessing, reco
    except ImportError:
        print("river is not installed, so nothing is measured beside: pip install river", file=sys.stderr)
        return {}
    factors, machine = reco.BiasedMF(n_factors=10, seed=0), facto.FMRegressor(n_factors=10, seed=0)
    linear = preprocessing.OneHotEncoder() | linear_model.LinearRegression()
    found: dict[str, Calls] = {
        "River reco.BiasedMF": (
            lambda u, i, v: factors.learn_one(user=u, item=i, y=v),
            lambda u, i: factors.predict_one(user=u, item=i),
        ),
        "River facto.FMRegressor": (
            lambda u, i, v: machine.learn_one({"user": u, "item": i}, v),
            lambda u, i: machine.predict_one({"user": u, "item": i}),
        ),
        "River one-hot LinearRegression": (
            lambda u, i, v: linear.learn_one({"user": u, "item": i}, v),
            lambda u, i: linear.predict_one({"user": u, "item": i}),
        ),
    }
    for learn, _ in list(found.values())[:2]:
        for entry in before:
            learn(*entry)
    for entry in before[:2000]:  # its one-hot dicts grow with every id, and so does its time per entry
        found["River one-hot LinearRegression"][0](*entry)
    return found


def measured(models: dict[str, Calls], after: list[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in models}
    for start in range(0, len(after), ROUND):
        part = after[start : start + ROUND]
        for name, (learn, predict) in models.items():
            began = time.process_time()
            for user, item, value in part:
                learn(user, item, value)
            middle = time.process_time()
            for user, item, _ in part:
                predict(user, item)
            end = time.process_time()
            times[name][0].append((middle - began) / ROUND * 1e6)
            times[name][1].append((end - middle) / ROUND * 1e6)
    return {
        name: {
            "learn_us": round(statistics.mean(learn), 1),
            "predict_us": round(statistics.mean(predict), 1),
            "fastest_learn_us": round(min(learn), 1),
            "fastest_predict_us": round(min(predict), 1),
        }
        for name, (learn, predict) in times.items()
    }


def start_of_a_script() -> dict[str, float]:
    """Seconds of a fresh process whose kernels are on disk: the fastest of five."""
    runs = []
    for _ in range(6):  # the first may compile
        done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
        runs.append([float(number) for number in done.stdout.split()])
    names = ("import_s", "import_cpu_s", "first_fit_s", "first_fit_cpu_s")
    best = dict(zip(names, map(min, zip(*runs[1:], strict=True)), strict=True))
    for package in ("numpy", "numba", "scipy.special", "sklearn.base"):
        program = f"import time; t = time.process_time(); import {package}; print(time.process_time() - t)"
        command = [sys.executable, "-c", program]
        best[f"import {package} alone, cpu_s"] = min(
            float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        )
    return {name: round(seconds, 2) for name, seconds in best.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    every = entries(BEFORE + ROUNDS * ROUND)
    before, after = every[:BEFORE], every[BEFORE:]
    found = measured(ours(before) | rivers(before), after)
    peers = {name: found[name] for name in found if name.startswith("River")}
    ratios = {
        f"{name} / {peer}": {
            each: round(found[name][f"fastest_{each}_us"] / peers[peer][f"fastest_{each}_us"], 2)
            for each in ("learn", "predict")
        }
        for name in ("SpiderRegressor, committee=1", "SpiderRegressor, committee=4")
        for peer in peers
    }
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()}
    result = {"machine": machine, "one_event": found, "ratios": ratios, "start": start_of_a_script()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
