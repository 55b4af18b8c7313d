"""Every named method runs, and `spider` is what the estimators do by default."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.study import datasets
from spidertensor.study.registry import FLOORS, METHODS


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_and_predicts(name, binary):
    data = datasets.synthetic((8, 6), 300, binary=binary)
    method = METHODS[name].build(3, 2, binary, 64)
    state, update = method.update(method.init(0), data.train)
    prediction = method.predict(state, data.train.index)
    assert len(update.mean) == 300
    assert np.isfinite(prediction.mean).all()
    assert (prediction.var + prediction.noise > 0).all()


def test_floors_are_methods_and_take_values_as_they_are():
    assert all(not METHODS[name].scaled for name in FLOORS)
    assert all(METHODS[name].about for name in METHODS)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("name", "paper"), [("spider", False), ("spider-paper", True)])
def test_spider_is_the_estimator(name, paper, binary):
    """One default in two places would drift apart."""
    data = datasets.synthetic((8, 6), 300, binary=binary)
    kind = SpiderClassifier if binary else SpiderRegressor
    how = {} if binary else {"scaling": (0.0, 1.0)}
    model = (kind.paper if paper else kind)(rank=3, batch_size=64, random_state=5, **how)
    expected = model.learn(data.train.index, data.train.value)
    method = METHODS[name].build(3, 2, binary, 64)
    _, update = method.update(method.init(5), _by_appearance(data.train))
    np.testing.assert_array_equal(update.mean, expected.mean)
    np.testing.assert_array_equal(update.var, expected.var)


def _by_appearance(batch):
    """Rows as an estimator gives them: in order of first appearance."""
    columns = []
    for column in batch.index.T:
        rows: dict[int, int] = {}
        columns.append([rows.setdefault(raw, len(rows)) for raw in column.tolist()])
    return batch._replace(index=np.array(columns, np.int64).T.copy())
