"""The choice of an engine where a user makes it: estimator, method names, command."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from spidertensor import SpiderClassifier, SpiderRegressor, load
from spidertensor.methods import METHODS

pytest.importorskip("jax", reason="the vectorized engine needs the extra jax")

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 32}


def stream(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 12, (n, 2))
    return X, np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.normal(size=n)


def test_curvature_goes_entry_by_entry_and_equals_the_sequential_engine():
    X, y = stream()
    both = [
        SpiderRegressor(engine=e, curvature=True, **SMALL).fit(X, y) for e in ("sequential", "vectorized")
    ]
    np.testing.assert_allclose(both[0].predict(X), both[1].predict(X), rtol=2e-3, atol=2e-3)
    assert both[0].log_evidence_ == pytest.approx(both[1].log_evidence_, rel=1e-3)


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_joint_learns_saves_and_goes_on(kind, tmp_path):
    X, y = stream()
    y = (y > 0).astype(int) if kind is SpiderClassifier else y
    whole = kind(engine="vectorized", **SMALL).partial_fit(X[:320], y[:320])
    whole.save(tmp_path / "half.spider")
    resumed = load(tmp_path / "half.spider")
    assert resumed.engine == "vectorized"
    whole.partial_fit(X[320:], y[320:]).save(tmp_path / "whole.spider")
    resumed.partial_fit(X[320:], y[320:]).save(tmp_path / "resumed.spider")
    assert (tmp_path / "whole.spider").read_bytes() == (tmp_path / "resumed.spider").read_bytes()
    assert whole.score(X, y) > 0.5


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine must be"):
        SpiderRegressor(engine="steam").fit([(1, 2)], [1.0])


def test_every_spider_runs_on_both_engines():
    with_engines = {name for name, named in METHODS.items() if "engine" in named.settings}
    assert with_engines == {name for name in METHODS if name.startswith("spider")}


def test_the_command_takes_an_engine():
    def spider(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spidertensor", "evaluate", "synthetic", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = spider("--engine", "vectorized", "--rank", "3", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["engine"] == "vectorized"
    assert row["score"] < row["floors"]["biases"]["score"]
    refused = spider("--engine", "vectorized", "--method", "biases")
    assert refused.returncode == 2
    assert "has no engines" in refused.stderr
