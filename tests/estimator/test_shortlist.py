"""How `recommend` finds the best of many: the shortlist by quick means, and draws."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor import CustomNetwork, SpiderClassifier, SpiderRegressor, SpiderWarning
from spidertensor.estimator import quick_scores
from spidertensor.estimator import recommend as ranking
from spidertensor.estimator.parameters import model_of
from spidertensor.estimator.quick_scores import expected_bounds, mean_bounds, quick_bounds
from spidertensor.estimator.recommend import _shortlist
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN

SMALL = {"rank": 2, "hidden": (6,)}


def fitted(committee: int = 2) -> SpiderRegressor:
    rng = np.random.default_rng(0)
    index = rng.integers((9, 60), size=(900, 2))
    return SpiderRegressor(**SMALL, committee=committee).fit(index, np.sin(index[:, 0] * index[:, 1]))


@pytest.mark.parametrize("n", [1, 3, 17])
@pytest.mark.parametrize("error", [0.0, 0.2])
@pytest.mark.parametrize("block", [70, 512])
def test_the_shortlist_has_all_that_may_be_among_the_best(monkeypatch, n, error, block):
    """With an error that lets neighbours change places: all whose best case reaches the n-th worst case."""
    monkeypatch.setattr(ranking, "BLOCK", block)
    monkeypatch.setattr(quick_scores, "ERROR", error)
    model = fitted()._fitted()
    numbers, places = [np.arange(600) % 10 - 1, np.arange(600) // 10], np.arange(597)
    low, high = (each[places] for each in mean_bounds(model, numbers))
    wanted = places[high >= np.sort(low)[-n]]
    assert len(wanted) > n or not error
    assert _shortlist(model, numbers, places, n, mean_bounds).tolist() == wanted.tolist()


def test_the_lowest_of_many_are_those_of_a_full_sort(monkeypatch):
    monkeypatch.setattr(ranking, "BLOCK", 16)
    model = fitted()
    ranked = model.recommend({0: 3}, 1, 7, best="low")
    mean = model.predict([(3, each) for each in range(60)])
    assert [each.id for each in ranked] == np.argsort(mean, kind="stable")[:7].tolist()


def test_quick_scores_are_in_the_units_that_the_members_have_followed():
    """The values jump to another level and scale, so shift and scale of the members are no longer 0 and 1."""
    rng = np.random.default_rng(1)
    index = rng.integers((5, 20), size=(3000, 2))
    value = np.sin(index[:, 0] * index[:, 1]) + 0.1 * rng.normal(size=3000)
    value[1000:] = 500 + 40 * value[1000:]
    with pytest.warns(SpiderWarning, match="the scale of the values has changed"):
        model = SpiderRegressor(**SMALL, committee=2, passes=1).fit(index, value)._fitted()
    streams = [member.stream for member in model.state.members]
    assert all(stream.scale > 2 and stream.shift > 2 for stream in streams)
    numbers = [np.array([2]), np.arange(20)]
    low, high = mean_bounds(model, numbers)
    every = np.stack(np.broadcast_arrays(*numbers), axis=1)
    exact = model.model.method.predict(model.state, every).mean
    assert ((low <= exact) & (exact <= high)).all()
    assert (high - low).max() < 2e-2 * np.ptp(exact)


@pytest.mark.parametrize("n", [0, -3, -1000])
def test_nobody_is_recommended_if_none_are_wanted(monkeypatch, n):
    monkeypatch.setattr(ranking, "BLOCK", 7)
    for explore in ranking.EXPLORE:
        assert fitted().recommend({0: 1}, 1, n, explore=explore) == []


def test_one_model_is_not_drawn():
    """Where there is one member, only its weights and nodes use up random numbers."""
    model, rng, expected = fitted(committee=1), np.random.default_rng(5), np.random.default_rng(5)
    model.recommend_many({0: [1]}, 1, explore="thompson", seed=rng)
    learned = model._fitted()
    member, state = learned.model.members[0], learned.state.members[0]
    rows = [learned.nodes[0].find([1]), np.empty(0, np.int64)]
    drawn = posterior.sample(state, member.network, member.prior, rows, expected)
    posterior.with_drawn(drawn, state, member.network, member.prior, 1, np.arange(60), expected)
    assert rng.bit_generator.state == expected.bit_generator.state


def test_bounds_are_for_the_built_in_network_and_means_alone_for_values_only():
    learned = fitted()._fitted()
    assert quick_bounds(learned, "mean") is mean_bounds
    network = CustomNetwork(len, ((3, 4),))  # never run
    params = learned.params | {"network": network, "engine": "vectorized", "committee": 1}
    custom = model_of(params, GAUSSIAN, 2, runs=False)
    both = custom._replace(members=(*learned.model.members, *custom.members))
    for model in (custom, both):
        for explore in ("mean", "ucb"):
            assert quick_bounds(learned._replace(model=model), explore) is None
    classifier = SpiderClassifier(**SMALL, committee=1).fit([(0, 0), (1, 1)], [0, 1])._fitted()
    assert quick_bounds(classifier, "mean") is expected_bounds  # the probability also depends on the variance
