"""Ever new ids through a model with `max_nodes`, as JSON: does memory stay flat, does it still learn?

Every entry has a visitor who was never seen before and will not come again, and one of 500 pages, which are
replaced by new ones over 20,000 entries. The value is a property of the page, plus noise of 0.5.

    python benchmarks/stress/endless_ids.py [entries] [committee]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from spidertensor import SpiderRegressor

CHUNK = 100_000
PAGES, REPLACED, NOISE = 500, 40, 0.5  # pages at a time; entries from one new page to the next
SHOWN = 20  # lines of the curve


def entries(first: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    visitor = np.arange(first, first + n)
    page = visitor // REPLACED + rng.integers(0, PAGES, n)
    return np.stack([visitor, page], axis=1), np.sin(page * 1.7) + NOISE * rng.normal(size=n)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def measured(total: int, max_nodes: int = 10_000, committee: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    model = SpiderRegressor(scaling=(0.0, 1.0), max_nodes=max_nodes, committee=committee)
    curve, began = [], perf_counter()
    chunk = min(CHUNK, total)
    every = max(1, total // chunk // SHOWN)
    for number, first in enumerate(range(0, total, chunk)):
        X, y = entries(first, chunk, rng)
        error = float(np.sqrt(np.mean((model.learn(X, y).mean - y) ** 2)))
        if number % every == every - 1:
            curve.append({"entries": model.n_entries_, "mib": resident_mib(), "rmse": round(error, 4)})
    return {
        "entries": model.n_entries_,
        "max_nodes": max_nodes,
        "committee": committee,
        "nodes": model.n_nodes_,
        "evicted": model.n_evicted_,
        "noise": NOISE,
        "curve": curve,
        "growth_mib": round(curve[-1]["mib"] - curve[0]["mib"], 1),
        "seconds": round(perf_counter() - began, 1),
    }


if __name__ == "__main__":
    given = [int(float(text)) for text in sys.argv[1:]]
    how = {"committee": given[1]} if len(given) > 1 else {}
    print(json.dumps(measured(given[0] if given else 20_000_000, **how)))
