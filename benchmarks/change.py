"""How the committee follows change, as JSON. 50 x 40 nodes, three factors each, noise 0.3. Errors are RMSE
against the values, noise and all; those of `curve` are against the values without their noise.

change: after 5 million entries half of the nodes of one mode get new factors. A fresh model learns what comes
        afterwards beside it; it has settled where its error is within 5 % of its last. Three times as many
        entries later the old model's error on the changed nodes should be within 10 % of the fresh one's, and
        on the unchanged nodes never more than 20 % above what it was.
drift:  the factors move all the time. The committee beside single models of several memories.

    python benchmarks/change.py [change|drift] [entries before the change]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from spidertensor import SpiderRegressor

NODES, RANK, NOISE = (50, 40), 3, 0.3
WINDOW = 2_000
AFTER = 200_000


class Truth:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.factors = [self.rng.normal(size=(n, RANK)) / RANK**0.25 for n in NODES]

    def entries(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        X = self.rng.integers(NODES, size=(n, 2))
        f = np.einsum("nr,nr->n", *(factor[X[:, k]] for k, factor in enumerate(self.factors)))
        return X, f, f + NOISE * self.rng.normal(size=n)


def rmse(error: np.ndarray) -> float:
    return round(float(np.sqrt(np.mean(error**2))), 4)


def change(before: int, seed: int, **settings: Any) -> dict[str, Any]:
    truth = Truth(seed)
    model, fresh = SpiderRegressor(**settings), SpiderRegressor(**settings)
    for _ in range(before // 100_000 - 1):
        X, _, y = truth.entries(100_000)
        model.learn(X, y)
    X, _, y = truth.entries(100_000)
    half = NODES[0] // 2
    unchanged_before = rmse((model.learn(X, y).mean - y)[X[:, 0] >= half])
    truth.factors[0][:half] = truth.rng.normal(size=(half, RANK)) / RANK**0.25
    rows, curve = [], []
    for start in range(0, AFTER, WINDOW):
        X, f, y = truth.entries(WINDOW)
        changed = X[:, 0] < half
        old, new = (each.learn(X, y).mean for each in (model, fresh))
        parts = ((old, changed), (new, changed), (old, ~changed))
        rows.append([start + WINDOW, *(rmse((mean - y)[part]) for mean, part in parts)])
        curve.append([start + WINDOW, *(rmse((mean - f)[part]) for mean, part in parts)])
    table = np.array(rows)
    last = table[-10:, 2].mean()
    settled = int(table[np.argmax(table[:, 2] < 1.05 * last), 0])
    later = table[(table[:, 0] > 3 * settled) & (table[:, 0] <= 3 * settled + 10 * WINDOW)]
    return {
        "scenario": "change", "seed": seed, "settings": settings, "entries_before": before,
        "fresh_settled_after": settled, "fresh_error": round(last, 4),
        "changed_over_fresh_at_three_times": round(later[:, 1].mean() / later[:, 2].mean(), 3),
        "unchanged_worst_over_before": round(table[:, 3].max() / unchanged_before, 3),
        "curve": curve[:: len(curve) // 20],
        "followed": model.followed_,
        "weights": [round(member.weight, 3) for member in model.members_],
    }  # fmt: skip


def drift(seed: int, per_entry: float, **settings: Any) -> dict[str, Any]:
    """`per_entry`: variance that an entry adds to each factor of the first mode, which shrinks as well."""
    truth = Truth(seed)
    model, errors = SpiderRegressor(**settings), []
    step = 100
    keep = np.sqrt(1 - per_entry * step)
    for start in range(0, 300_000, step):
        X, f, y = truth.entries(step)
        update = model.learn(X, y)
        if start >= 100_000:
            errors.append(update.mean - f)
        moved = np.sqrt(per_entry * step) * truth.rng.normal(size=(NODES[0], RANK)) / RANK**0.25
        truth.factors[0] = keep * truth.factors[0] + moved
    error = rmse(np.concatenate(errors))
    return {"scenario": "drift", "seed": seed, "per_entry": per_entry, "settings": settings, "error": error}


def main(scenarios: list[str], before: int) -> None:
    if "change" in scenarios:
        for seed in range(3):
            for committee in (4, 1):
                print(json.dumps(change(before, seed, committee=committee)), flush=True)
    if "drift" in scenarios:
        for per_entry in (1e-6, 1e-5):
            for settings in ({}, *({"committee": 1, "memory": m} for m in (None, 10_000, 1000, 300, 100))):
                print(json.dumps(drift(0, per_entry, **settings)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:2] or ["change", "drift"], int(float(sys.argv[2])) if len(sys.argv) > 2 else 5_000_000)
