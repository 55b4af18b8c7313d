"""How `recommend` finds the best of many: the shortlist by quick means, and draws."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor import CustomNetwork, SpiderClassifier, SpiderRegressor, SpiderWarning
from spidertensor.estimator import recommend as ranking
from spidertensor.estimator.parameters import model_of
from spidertensor.estimator.recommend import _quick_scores, _shortlist
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
    monkeypatch.setattr(ranking, "ERROR", error)
    model = fitted()._fitted()
    numbers, places = [np.arange(600) % 10 - 1, np.arange(600) // 10], np.arange(597)
    score, off = (each[places] for each in np.broadcast_arrays(*_quick_scores(model, numbers)))
    wanted = places[score + off >= np.sort(score - off)[-n]]
    assert len(wanted) > n or not error
    assert _shortlist(model, numbers, places, n).tolist() == wanted.tolist()


def test_quick_scores_are_in_the_units_that_the_members_have_followed():
    """The values jump to another level and scale, so shift and scale of the members are no longer 0 and 1."""
    rng = np.random.default_rng(1)
    index = rng.integers((5, 20), size=(3000, 2))
    value = np.sin(index[:, 0] * index[:, 1]) + 0.1 * rng.normal(size=3000)
    value[1000:] = 500 + 40 * value[1000:]
    with pytest.warns(SpiderWarning, match="nothing to do with those before"):
        model = SpiderRegressor(**SMALL, committee=2).fit(index, value)._fitted()
    streams = [member.stream for member in model.state.members]
    assert all(stream.scale > 2 and stream.shift > 2 for stream in streams)
    numbers = [np.array([2]), np.arange(20)]
    score, error = _quick_scores(model, numbers)
    every = np.stack(np.broadcast_arrays(*numbers), axis=1)
    exact = model.model.method.predict(model.state, every).mean
    assert (np.abs(score - exact) <= error).all()
    assert error.max() < 1e-2 * np.ptp(exact)


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


def test_quick_means_are_for_the_built_in_network_and_for_values_only():
    learned = fitted()._fitted()
    assert ranking._means_rank(learned)
    network = CustomNetwork(len, ((3, 4),))  # never run
    params = learned.params | {"network": network, "engine": "vectorized", "committee": 1}
    custom = model_of(params, GAUSSIAN, 2, runs=False)
    assert not ranking._means_rank(learned._replace(model=custom))
    both = custom._replace(members=(*learned.model.members, *custom.members))
    assert not ranking._means_rank(learned._replace(model=both))
    classifier = SpiderClassifier(**SMALL, committee=1).fit([(0, 0), (1, 1)], [0, 1])._fitted()
    assert not ranking._means_rank(classifier)  # the probability also depends on the variance
