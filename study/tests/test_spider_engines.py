"""Every variant of SPIDER in the registry runs on both engines; for the product's own settings of it, see the
product's test_engines.py."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor.method import Batch
from spidertensor.spider.engine import ENGINES
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study.registry import METHODS

pytest.importorskip("jax", reason="the vectorized engine needs the extra jax")


HERE_ONLY = [name for name in METHODS if name.startswith("spider") and name not in ("spider", "spider-paper")]


@pytest.mark.parametrize("name", HERE_ONLY)
def test_every_spider_runs_on_both_engines(name):
    """And learns: nearly the same, exactly so but for rounding where both go entry by entry."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, 12, (640, 2))
    value = np.sin(index[:, 0]) + np.cos(index[:, 1]) + 0.1 * rng.normal(size=640)
    means = []
    for engine in ENGINES:
        method = METHODS[name].build(2, 2, GAUSSIAN, 32, engine=engine)
        assert method.unit == ("batch" if engine == "vectorized" and "paper" not in name else "entry")
        state, _ = method.update(method.init(0), Batch(index, value))
        means.append(method.predict(state, index).mean)
        assert np.mean((means[-1] - value) ** 2) < np.var(value)
    close = 2e-3 if "paper" in name else 0.5
    np.testing.assert_allclose(means[0], means[1], rtol=0, atol=close)


def test_only_spider_has_engines():
    with_engines = {name for name, entry in METHODS.items() if "engine" in entry.settings}
    assert with_engines == {name for name in METHODS if name.startswith("spider")}
