"""Users who buy products, and models of them."""

from __future__ import annotations

from functools import cache

import numpy as np

from spidertensor import SpiderClassifier, SpiderRegressor

SMALL = {"rank": 2, "hidden": (8,)}
CATEGORIES = {product: f"c{product % 4}" for product in range(40)}


def purchases(n=1500, seed=0):
    """User, product, category, and a value that depends on all of them; product 39 is there once."""
    rng = np.random.default_rng(seed)
    users, products = rng.integers(9, size=n), rng.integers(39, size=n)
    products[-1] = 39
    X = [
        (f"u{user}", int(product), CATEGORIES[int(product)])
        for user, product in zip(users, products, strict=True)
    ]
    value = np.sin(users * products) + products % 4 + 0.2 * rng.normal(size=n)
    return X, value


@cache
def model(kind=SpiderRegressor, **settings):
    import pandas

    X, value = purchases()
    frame = pandas.DataFrame(X, columns=["user", "product", "category"])
    return kind(**SMALL, **settings).fit(frame, value > 2 if kind is SpiderClassifier else value)


TABLE = {"product": list(CATEGORIES), "category": list(CATEGORIES.values())}
