"""Every named method runs, and `spider` is what the estimators do by default."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from poisson import Poisson
from quick_settings import QUICK
from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.method import Prediction, Update
from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, LIKELIHOODS, PROBIT, Likelihood
from spidertensor_study import datasets
from spidertensor_study.registry import FLOORS, METHODS


@cache
def learned(
    name: str, likelihood: Likelihood, rank: int = 2, batch_size: int = 16
) -> tuple[Update, Prediction]:
    """What a method says of 300 entries while it learns them, and afterwards. The sizes are those of
    test_methods_contract.py, for which most is compiled already."""
    data = datasets.synthetic((8, 6, 5), 300, likelihood=likelihood)
    method = METHODS[name].build(rank, 3, likelihood, batch_size, **QUICK.get(name, {}))
    assert method.unit == METHODS[name].unit
    state, update = method.update(method.init(0), data.train)
    return update, method.predict(state, data.train.index)


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values())
@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_and_predicts(name, likelihood):
    if likelihood is COUNT and not METHODS[name].counts:
        with pytest.raises(ValueError, match="count likelihood"):
            METHODS[name].build(3, 2, likelihood, 64)
        return
    update, prediction = learned(name, likelihood)
    assert len(update.mean) == 300
    assert np.isfinite(prediction.mean).all()
    assert (prediction.var + prediction.noise > 0).all()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", METHODS)
def test_a_likelihood_that_a_method_has_no_formulas_for_is_refused(name, engine):
    settings = {"engine": engine} if "engine" in METHODS[name].settings else {}
    for unknown in ("gaussian", "poisson", 0, None):
        with pytest.raises(ValueError, match="needs a likelihood object"):
            METHODS[name].build(3, 2, unknown, 64, **settings)
    with pytest.raises(ValueError, match="poisson likelihood, only gaussian and probit"):
        METHODS[name].build(3, 2, Poisson(), 64, **settings)


def test_an_entry_says_all_there_is_to_say():
    assert all(each.label and each.description for each in METHODS.values())
    assert len({entry.label for entry in METHODS.values()}) == len(METHODS)
    for name in FLOORS:
        entry = METHODS[name]
        assert (entry.scaled, entry.has_rank, entry.has_batch_size) == (False, False, False)


@pytest.mark.parametrize("name", METHODS)
def test_rank_and_batch_size_change_nothing_where_the_entry_says_so(name):
    """And something where it does not."""
    entry, usual = METHODS[name], learned(name, GAUSSIAN)[1].mean
    assert np.array_equal(usual, learned(name, GAUSSIAN, rank=3)[1].mean) == (not entry.has_rank)
    same = np.array_equal(usual, learned(name, GAUSSIAN, batch_size=32)[1].mean)
    assert same == (not entry.has_batch_size)


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values())
@pytest.mark.parametrize(("name", "paper"), [("spider", False), ("spider-paper", True)])
def test_spider_is_the_estimator(name, paper, likelihood):
    """One default in two places would drift apart."""
    data = datasets.synthetic((8, 6), 300, likelihood=likelihood)
    kind = SpiderClassifier if likelihood is PROBIT else SpiderRegressor
    how = {PROBIT: {}, COUNT: {"likelihood": "count"}}.get(likelihood, {"scaling": (0.0, 1.0)})
    model = (kind.paper if paper else kind)(rank=3, batch_size=64, random_state=5, **how)
    expected = model.learn(data.train.index, data.train.value)
    method = METHODS[name].build(3, 2, likelihood, 64)
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
