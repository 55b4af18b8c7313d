"""Members without a network: biases only, or biases and pairs, beside whole ones."""

from __future__ import annotations

import numpy as np
import pytest

import spidertensor
from spidertensor import SpiderClassifier, SpiderRegressor

BIASES, PAIRS = {"rank": 0, "multilinear": 0, "bias_var": 0.1}, {"rank": 0}
SIZES = {"rank": 2, "hidden": (4,), "multilinear": 3}


def additive(n: int = 2000, nodes: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    index = rng.integers(nodes, size=(n, 2))
    f = rng.normal(size=nodes)[index[:, 0]] + np.cos(index[:, 1])
    return index, f, f + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_they_learn_predict_and_go_on_from_a_file(kind, tmp_path):
    index, _, value = additive()
    value = value if kind is SpiderRegressor else (value > 0).astype(int)
    model = kind(**SIZES, committee=[{}, BIASES, PAIRS])
    model.partial_fit(index[:1000], value[:1000])
    assert [[len(each.mean[0]) for each in model.factors(m)] for m in range(3)] == [[6, 6], [1, 1], [4, 4]]
    assert [weights.mean.shape for weights in model.weights(1)] == [(1, 1)]
    model.save(tmp_path / "model")
    again = spidertensor.load(tmp_path / "model")
    assert [member.own for member in again.members_] == [{}, BIASES, PAIRS]
    for each in (model, again):
        each.partial_fit(index[1000:], value[1000:])
    np.testing.assert_array_equal(model.predict(index), again.predict(index))
    one_by_one = spidertensor.load(tmp_path / "model")
    for row, y in zip(index[1000:], value[1000:], strict=True):
        one_by_one.learn_one(tuple(row), y)
    np.testing.assert_array_equal(model._predict(index), one_by_one._predict(index))


def test_several_passes():
    index, f, value = additive()
    for own in (BIASES, PAIRS):
        model = SpiderRegressor(**SIZES, committee=[own], passes=3).fit(index, value)
        assert np.sqrt(np.mean((model.predict(index) - f) ** 2)) < 0.15


def test_biases_alone_are_close_to_the_best_that_biases_can_do():
    """Least squares with the prior's penalty, on what was learned."""
    index, f, value = additive(1000)
    model = SpiderRegressor(rank=0, multilinear=0, committee=1, scaling=(0, 1))
    model.set_params(prior__bias_var=1.0).partial_fit(index, value)
    columns = np.zeros((1000, 61))
    columns[np.arange(1000), index[:, 0]] = columns[np.arange(1000), 30 + index[:, 1]] = columns[:, 60] = 1
    exact = columns @ np.linalg.solve(columns.T @ columns + 0.09 * np.eye(61), columns.T @ value)
    ours, best = (np.sqrt(np.mean((each - f) ** 2)) for each in (model.predict(index), exact))
    assert ours < 1.2 * best < 0.1


def test_a_wrong_rank_is_one_error():
    with pytest.raises(ValueError, match="at least 1 in every mode, or 0 for no network"):
        SpiderRegressor(rank=(0, 2)).fit([(1, 2)], [1.0])


@pytest.mark.slow
def test_both_engines():
    pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
    index, _, value = additive(600)
    both = [
        SpiderRegressor(**SIZES, committee=[BIASES, PAIRS], batch_size=1, engine=engine, scaling=(0, 1))
        for engine in ("sequential", "vectorized")
    ]
    for model in both:
        model.partial_fit(index, value)
    np.testing.assert_allclose(*(model.predict(index[:50]) for model in both), rtol=1e-3, atol=1e-3)
