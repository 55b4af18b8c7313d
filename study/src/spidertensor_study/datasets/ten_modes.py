"""A synthetic stream of ten modes whose values depend on pairs and triples of ids.

Who used which app, in which situation: users come back to a few apps each, so most pairs of user and app
repeat, as they do in logs of use. The truth f has mean 0 and variance 1; SHARES says what it is made of:

    biases        a number for each node of each mode
    user, app     a number for each pair, unrelated to all others: only what remembers the pair can learn it
    product pairs products of factors of rank 2: user x daytime, app x weekday, app x city
    free triple   a number for each of the 567 combinations of daytime, weather and place
    product triple  one product of three factors: app x daytime x cost

A value is f + NOISE N(0, 1). So the error of a perfect prediction is NOISE, that of the mean is
sqrt(1 + NOISE^2), and one that knows everything but a part has sqrt(share of the part + NOISE^2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.dataset import TEST_SHARE, Dataset, Info, as_batch
from spidertensor.spider.likelihoods import GAUSSIAN

SIZES = {
    "user": 1000, "app": 600, "daytime": 7, "weekday": 7, "weekend": 2, "place": 9, "cost": 2, "weather": 9,
    "country": 60, "city": 180,
}  # fmt: skip
MODES = tuple(SIZES)
APPS_PER_USER = 12
NOISE = 0.5
SHARES = {
    "biases": 0.2, "user, app": 0.35, "product pairs": 0.15, "free triple": 0.15, "product triple": 0.15,
}  # fmt: skip

INFO = Info(
    "ten-modes",
    "a synthetic stream of ten modes whose values depend on pairs and triples of ids, with known truth",
    MODES, "value", GAUSSIAN, "none", "spidertensor_study.datasets.ten_modes",
)  # fmt: skip


def ten_modes(n_entries: int = 100_000, seed: int = 0) -> Dataset:
    """The stream; a tenth more entries, after its end, are the test."""
    rng = np.random.default_rng(seed)
    n = n_entries + int(TEST_SHARE * n_entries)
    index = _entries(rng, n)
    f = sum(
        np.sqrt(share) * _standard(part)
        for share, part in zip(SHARES.values(), _parts(rng, index), strict=True)
    )
    f = _standard(np.asarray(f))
    value = f + NOISE * rng.normal(size=n)
    return Dataset(
        **vars(INFO),
        shape=tuple(SIZES.values()),
        train=as_batch(index[:n_entries], value[:n_entries]),
        tests={"paper": as_batch(index[n_entries:], value[n_entries:])},
        time_order=np.arange(n_entries),
        truth={"train": f[:n_entries], "test": f[n_entries:]},
    )


def _entries(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """(n, 10) users with a few apps each; a user stays in one country, and a city lies in one."""
    users, apps, countries = SIZES["user"], SIZES["app"], SIZES["country"]
    user = _popular(rng, users, n)
    own_apps = np.stack([_popular(rng, apps, APPS_PER_USER) for _ in range(users)])
    app = own_apps[user, _popular(rng, APPS_PER_USER, n)]
    country = _popular(rng, countries, users)[user]
    cities = SIZES["city"] // countries  # of each
    city = cities * country + rng.integers(cities, size=n)
    weekday = rng.integers(SIZES["weekday"], size=n)
    others = {name: rng.integers(SIZES[name], size=n) for name in ("daytime", "place", "cost", "weather")}
    columns = others | {
        "user": user, "app": app, "weekday": weekday, "weekend": weekday // 5, "country": country,
        "city": city,
    }  # fmt: skip
    return np.stack([columns[mode] for mode in MODES], axis=1).astype(np.int64)


def _popular(rng: np.random.Generator, size: int, n: int) -> NDArray[np.int64]:
    """n draws of which a few nodes, anywhere among `size`, are most."""
    weight = rng.permutation(1 / np.sqrt(1 + np.arange(size)))
    return rng.choice(size, n, p=weight / weight.sum())


def _parts(rng: np.random.Generator, index: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """The parts of f in the order of SHARES, each (n,)."""
    column = dict(zip(MODES, index.T, strict=True))

    def product(rank: int, *modes: str) -> NDArray[np.float64]:
        factors = [rng.normal(size=(SIZES[mode], rank))[column[mode]] for mode in modes]
        return np.prod(factors, axis=0).sum(axis=1)

    def table(modes: Sequence[str]) -> NDArray[np.float64]:
        sizes = tuple(SIZES[mode] for mode in modes)
        return rng.normal(size=sizes)[tuple(column[mode] for mode in modes)]

    pairs = (("user", "daytime"), ("app", "weekday"), ("app", "city"))
    return [
        np.sum([table([mode]) for mode in MODES], axis=0),
        table(["user", "app"]),
        np.sum([product(2, *pair) for pair in pairs], axis=0),
        table(["daytime", "weather", "place"]),
        product(1, "app", "daytime", "cost"),
    ]


def _standard(part: NDArray[np.float64]) -> NDArray[np.float64]:
    return (part - part.mean()) / part.std()
