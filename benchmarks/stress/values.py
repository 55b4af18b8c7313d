"""What values can do to a model: outliers, long tails, a first batch that does not speak for the rest, jumps.

    python benchmarks/stress/values.py [names of scenarios] > rows.jsonl

One JSON line per scenario: the RMSE of predictions made before each entry was learned, that of the run it is
compared with, their ratio, and the largest ratio that is acceptable. Streams are synthetic: additive effects
of 2,000 x 300 nodes, a product of their factors, and noise of standard deviation 0.3.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import SpiderRegressor

Floats = NDArray[np.float64]


class Stream(NamedTuple):
    index: NDArray[np.int64]
    value: Floats


def stream(n: int, shape: tuple[int, int] = (2000, 300), seed: int = 0) -> Stream:
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(size, size=n) for size in shape], axis=1)
    factors = [rng.normal(size=(size, 3)) for size in shape]
    effects = [0.7 * rng.normal(size=size) for size in shape]
    f = sum(effect[rows] for effect, rows in zip(effects, index.T, strict=True))
    f = f + 0.4 / np.sqrt(3) * np.prod(
        [u[rows] for u, rows in zip(factors, index.T, strict=True)], axis=0
    ).sum(1)
    return Stream(index, f + 0.3 * rng.normal(size=n))


def predicted(index: NDArray[np.int64], value: Floats, **settings: Any) -> Floats:
    """What the model says of each entry before it learns it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the first values do not vary, and that changes are followed
        return SpiderRegressor(**settings).learn(index, value).mean


def rmse(error: Floats) -> float:
    return float(np.sqrt(np.mean(error**2)))


def row(scenario: str, ours: float, reference: float, limit: float) -> dict[str, Any]:
    numbers = {"rmse": ours, "reference": reference, "ratio": ours / reference, "limit": limit}
    return {"scenario": scenario} | {name: round(number, 4) for name, number in numbers.items()}


def one_outlier(n: int = 90_000, **settings: Any) -> Iterator[dict[str, Any]]:
    """One wild value near the end, scored on the entries behind it; against a run without it."""
    index, value = stream(n)
    at = n - n // 9
    clean = rmse((predicted(index, value, **settings) - value)[at + 1 :])
    for size in (30, 100, 1_000, 10_000):
        wild = value.copy()
        wild[at] += size * value.std()
        after = rmse((predicted(index, wild, **settings) - value)[at + 1 :])
        yield row(f"one outlier of {size:,} sigma", after, clean, 1.02)


def many_outliers(n: int = 90_000, **settings: Any) -> Iterator[dict[str, Any]]:
    """One value in a hundred replaced; scored on the others."""
    index, value = stream(n)
    rng = np.random.default_rng(1)
    bad = rng.random(n) < 0.01
    scored = ~bad & (np.arange(n) >= n // 10)
    clean = rmse((predicted(index, value, **settings) - value)[scored])
    for size in (30, 100, 1_000, 10_000):
        wild = value.copy()
        wild[bad] = size * value.std() * rng.choice([-1, 1], bad.sum())
        yield row(
            f"1 % outliers of {size:,} sigma",
            rmse((predicted(index, wild, **settings) - value)[scored]),
            clean,
            1.10,
        )


def long_tails(n: int = 90_000, **settings: Any) -> Iterator[dict[str, Any]]:
    """Raw amounts; against the mean of all before."""
    index, value = stream(n)
    noise = np.random.default_rng(3).normal(size=n)
    for sigma in (1.0, 2.0, 3.0):
        amount = np.exp(sigma * (0.5 * value / value.std() + 0.85 * noise))
        mean = np.concatenate([amount[:1], np.cumsum(amount)[:-1] / np.arange(1, n)])
        scored = slice(n // 10, None)
        ours = rmse((predicted(index, amount, **settings) - amount)[scored])
        yield row(f"log-normal amounts, sigma {sigma:g}", ours, rmse((mean - amount)[scored]), 1.0001)


def first_values(n: int = 110_000, **settings: Any) -> Iterator[dict[str, Any]]:
    """A misleading first batch; scored after 50,000 entries, against the stream as it is."""
    index, value = stream(n)
    scored = slice(5 * n // 11, None)
    clean = rmse((predicted(index, value, **settings) - value)[scored])
    lead = 20 * n // 11
    before = stream(lead, seed=7).index

    def of(name: str, index: NDArray[np.int64], changed: Floats) -> dict[str, Any]:
        error = (predicted(index, changed, **settings) - changed)[-n:][scored]
        return row(name, rmse(error), clean, 1.05)

    yield of("first 256 values equal", index, np.concatenate([np.full(256, value[0]), value[256:]]))
    yield of("first 256 values 1,000 times smaller", index, np.concatenate([value[:256] / 1000, value[256:]]))
    order = np.concatenate([np.argsort(value[:256]), np.arange(256, n)])
    yield of("first 256 values sorted", index[order], value[order])
    for level in (0.0, 1.7):
        equal = np.concatenate([np.full(lead, level), value])
        yield of(f"{lead:,} values of {level:g} first", np.concatenate([before, index]), equal)


def jumps(n: int = 160_000, **settings: Any) -> Iterator[dict[str, Any]]:
    """A change for good in mid-stream; scored 50,000 entries later, against a fresh model after as many."""
    index, value = stream(n)
    at, wait = 3 * n // 8, 5 * n // 16
    fresh = rmse((predicted(index[at:], value[at:], **settings) - value[at:])[wait:])
    # values that shrink clip nothing: only their running spread shows it, which takes 20,000 entries
    changes: dict[str, tuple[Callable[[Floats], Floats], float, float]] = {
        "all values times 1,000": (lambda y: 1000 * y, 1000, 1.1),
        "all values times 10": (lambda y: 10 * y, 10, 1.1),
        "all values divided by 1,000": (lambda y: y / 1000, 1 / 1000, 1.25),
        "all values plus 50": (lambda y: y + 50, 1, 1.1),
        "all values plus 1,000": (lambda y: y + 1000, 1, 1.1),
    }
    for name, (change, unit, limit) in changes.items():
        changed = np.concatenate([value[:at], change(value[at:])])
        error = (predicted(index, changed, **settings) - changed)[at + wait :] / unit
        yield row(name, rmse(error), fresh, limit)


def rare_events(n: int = 100_000, **settings: Any) -> Iterator[dict[str, Any]]:
    """Nearly all values are equal; against the mean of all before. Clipping must not let the noise vanish."""
    rng = np.random.default_rng(1)
    index = np.stack([rng.integers(200, size=n), rng.integers(50, size=n)], axis=1)
    for share in (0.01, 0.03, 0.1):
        value = (rng.random(n) < share * rng.gamma(0.5, 2, 200)[index[:, 0]]).astype(float)
        mean = np.concatenate([value[:1], np.cumsum(value)[:-1] / np.arange(1, n)])
        scored = slice(n // 10, None)
        ours = rmse((predicted(index, value, **settings) - value)[scored])
        yield row(f"events of {share:.0%}", ours, rmse((mean - value)[scored]), 1.002)


SCENARIOS = {
    each.__name__: each for each in (one_outlier, many_outliers, long_tails, rare_events, first_values, jumps)
}

if __name__ == "__main__":
    for name in sys.argv[1:] or SCENARIOS:
        for each in SCENARIOS[name]():
            print(json.dumps(each), flush=True)
