"""Rankings for many rows, of some candidates, without some others, in Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from products import CATEGORIES, SMALL, TABLE, model, purchases
from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.estimator import recommend as ranking
from spidertensor.estimator.quick_scores import mean_bounds
from spidertensor.estimator.recommend import EXPLORE
from spidertensor.faults import EntryError
from spidertensor.spider.network import ACTIVATIONS
from spidertensor.spider.quick_means import ERROR


def plain_ranking(fitted, user, explore="mean"):
    """Products by their scores, computed all at once from what predict_parts says."""
    parts = fitted.predict_parts([(user, product, category) for product, category in CATEGORIES.items()])
    if explore == "ucb":
        score = parts.mean + 2 * np.sqrt(parts.var)
    else:
        score = fitted.likelihood_.expected(parts.mean, parts.var)
    return [list(CATEGORIES)[place] for place in np.argsort(-score, kind="stable")]


def ids(ranked):
    return [each.id for each in ranked]


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@pytest.mark.parametrize("explore", ["mean", "ucb"])
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_change_nothing(monkeypatch, kind, explore, block):
    monkeypatch.setattr(ranking, "BLOCK", block)
    fitted = model(kind)
    users = ["u0", "u5", "nobody"]
    many = fitted.recommend_many({"user": users}, "product", 12, explore, candidates=TABLE)
    assert [ids(ranked) for ranked in many] == [plain_ranking(fitted, user, explore)[:12] for user in users]
    for user, ranked in zip(users, many, strict=True):
        X = [(user, each.id, CATEGORIES[each.id]) for each in ranked]
        parts = fitted.predict_parts(X)
        np.testing.assert_allclose([each.std for each in ranked], np.sqrt(parts.var), rtol=1e-6)


def test_equal_scores_keep_the_order_of_the_candidates(monkeypatch):
    """All never seen, so all predicted from the prior alike."""
    monkeypatch.setattr(ranking, "BLOCK", 3)
    new = [f"new{place}" for place in range(11)]
    fitted = SpiderRegressor(**SMALL).fit(
        [(user, f"p{p}") for user in range(5) for p in range(9)], np.arange(45)
    )
    for explore in ("mean", "ucb"):
        ranked = fitted.recommend({0: 1}, 1, 5, explore, candidates=[*new, "p1"])
        assert [each for each in ids(ranked) if each != "p1"] == new[: 5 - ("p1" in ids(ranked))]
    assert set(ids(fitted.recommend({0: 1}, 1, 50, "thompson", seed=1, candidates=new))) == set(new)
    drawn = {ids(fitted.recommend({0: 1}, 1, 1, "thompson", seed=s, candidates=new))[0] for s in range(40)}
    assert len(drawn) > 5  # each has a draw of its own


@pytest.mark.parametrize("block", [2, 1000])
def test_thompson_does_not_depend_on_the_blocks(monkeypatch, block):
    fitted = model()
    wanted = fitted.recommend_many({"user": ["u1", "u1"]}, "product", 40, "thompson", 3, candidates=TABLE)
    assert ids(wanted[0]) != ids(wanted[1])  # a draw for each row
    monkeypatch.setattr(ranking, "BLOCK", block)
    again = fitted.recommend_many({"user": ["u1", "u1"]}, "product", 40, "thompson", 3, candidates=TABLE)
    assert [ids(each) for each in again] == [ids(each) for each in wanted]


def test_thompson_draws_a_category_once_for_all_its_products():
    """Only the categories are uncertain: products of one category stay together in every draw."""
    X, value = purchases()
    fitted = SpiderRegressor(rank=1, hidden=(2,), multilinear=0, committee=1, scaling=(0, 1)).fit(X, value)
    state = fitted._fitted().state.members[0]
    for weight in state.posterior.weights:
        weight.mean[:], weight.var[:] = 0, 1e-12
    for mode, factor in enumerate(state.posterior.factors):
        factor.mean[:], factor.var[:] = 0, 1.0 if mode == 2 else 1e-12
    table = {1: TABLE["product"], 2: TABLE["category"]}
    firsts = set()
    for seed in range(20):
        ranked = ids(fitted.recommend({0: "u1"}, 1, 40, "thompson", seed, candidates=table))
        groups = [CATEGORIES[product] for product in ranked]
        assert sum(a != b for a, b in pairwise(groups)) == 3
        firsts.add(groups[0])
    assert len(firsts) == 4


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("settings", [{}, {"multilinear": 0, "bias": False}])
def test_quick_means_are_those_of_predict(activation, settings):
    X, value = purchases(400)
    fitted = SpiderRegressor(rank=2, hidden=(5, 4), activation=activation, committee=2, **settings).fit(
        X, value
    )
    learned = fitted._fitted()
    rng = np.random.default_rng(0)
    numbers = [np.array([2]), rng.integers(-1, 39, size=60), rng.integers(-1, 4, size=60)]
    low, high = mean_bounds(learned, numbers)
    exact = learned.model.method.predict(learned.state, np.stack(np.broadcast_arrays(*numbers), axis=1)).mean
    assert (np.abs((low + high) / 2 - exact) < 0.05 * (high - low)).all()
    assert (high - low >= 1.8 * ERROR).all()


def test_the_limit_of_blas_threads_ends_with_the_last_that_asked():
    from threadpoolctl import threadpool_info

    from spidertensor.spider.quick_means import one_blas_thread

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before, (first, second) = threads(), (one_blas_thread(), one_blas_thread())
    first.__enter__()
    second.__enter__()
    assert set(threads()) == {1}
    first.__exit__(None, None, None)
    assert set(threads()) == {1}
    second.__exit__(None, None, None)
    assert threads() == before


def test_quick_means_of_products_over_all_modes():
    """Models of before version 0.2 have them."""
    from dataclasses import replace

    from spidertensor.spider.quick_means import quick_means
    from spidertensor.spider.sequential import sequential

    learned = model(committee=1)._fitted()
    network = replace(learned.model.members[0].network, product=True)
    numbers = [np.array([1]), np.arange(9), np.array([0, 1, 2] * 3)]
    exact = sequential(network, learned.model.likelihood, node_noise=True).predict(
        learned.state.members[0], np.stack(np.broadcast_arrays(*numbers), axis=1)
    )
    np.testing.assert_allclose(quick_means(learned.state.members[0], network, numbers), exact.mean, rtol=1e-4)


def test_candidates_and_exclusions():
    fitted = model()
    order = plain_ranking(fitted, "u3")
    some = {"product": order[::-2], "category": [CATEGORIES[product] for product in order[::-2]]}
    assert ids(fitted.recommend({"user": "u3"}, "product", 99, candidates=some)) == order[1::2]
    best, second, third = order[:3]
    where = {"candidates": TABLE, "n": 3}
    for table in (
        [best, third],
        np.array([best, third]),
        {best, third},
        {"product": [best, third, "unknown"]},
    ):
        assert ids(fitted.recommend({"user": "u3"}, "product", exclude=table, **where))[0] == second
    mine = {"user": ["u3", "u4", "u3"], "product": [best, second, best]}
    both = fitted.recommend_many({"user": ["u3", "u5"]}, "product", exclude=mine, **where)
    assert ids(both[0]) == order[1:4]
    assert ids(both[1]) == plain_ranking(fitted, "u5")[:3]
    for explore in EXPLORE:
        assert (
            fitted.recommend({"user": "u3"}, "product", explore=explore, exclude=TABLE["product"], **where)
            == []
        )
        left = fitted.recommend({"user": "u3"}, "product", explore=explore, exclude=order[2:], **where)
        assert set(ids(left)) == {best, second}


def test_by_default_all_nodes_and_repeated_candidates_count_once():
    fitted = SpiderRegressor(**SMALL).fit([(user, p) for user in range(5) for p in range(9)], np.arange(45))
    every = ids(fitted.recommend({0: 1}, 1, 99))
    assert sorted(every) == list(range(9))
    assert ids(fitted.recommend({0: 1}, 1, 99, candidates=[*range(9), 3, 3])) == every
    assert ids(fitted.recommend({0: 1}, 1, 99, exclude=[3])) == [each for each in every if each != 3]
    assert fitted.recommend_many({0: []}, 1) == []
    assert ids(fitted.recommend({}, 1, 2, candidates={1: [4, 5], 0: [1, 1]})) in ([4, 5], [5, 4])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"candidates": "42"}, "ids or columns of ids, not one str"),
        ({"candidates": {"category": ["c1"]}}, "a column of the mode that is ranked"),
        ({"candidates": {"product": [1, 2], "category": ["c1"]}}, "differ in length"),
        (
            {"candidates": {"product": [1, 1], "category": ["c1", "c2"]}},
            "candidate 1 has two ids: 'c1' and 'c2'",
        ),
        ({"candidates": [1, 2]}, "every mode"),
        ({"candidates": TABLE | {"user": ["u1"] * 40}}, "every mode"),
        ({"candidates": 3}, "a dict of columns or a frame, got int"),
        ({"exclude": {"user": ["u1"]}}, "a column of the mode that is ranked"),
        ({"exclude": {"product": [1], "category": ["c1"]}}, "modes that are given, not mode 2"),
        ({"exclude": {"product": [1], "colour": ["c1"]}}, "no mode 'colour'"),
        ({"given": {"user": ["u1"], "category": ["c1", "c2"]}, "candidates": None}, "given differ in length"),
        ({"given": [("u1",)]}, "given must be a dict of columns or a frame, got list"),
        (
            {"candidates": {"product": [1, None], "category": ["c1"] * 2}},
            "row 1: mode 1: candidates: missing id",
        ),
        ({"exclude": [1, None]}, "row 1: mode 1: exclude: missing id"),
        ({"exclude": [1, [2]]}, "row 1: mode 1: exclude: .*list"),
        ({"exclude": np.array([1.0, np.nan])}, "row 1: mode 1: exclude: missing id"),
        ({"exclude": {"product": [1, 2], "user": ["u1", {}]}}, "row 1: mode 0: exclude: .*dict"),
    ],
)
def test_wrong_tables(change, reason):
    arguments = {"given": {"user": ["u1"]}, "over": "product", "candidates": TABLE} | change
    with pytest.raises((ValueError, EntryError), match=reason):
        model().recommend_many(**arguments)


def test_candidates_may_be_numbers_of_numpy():
    model = SpiderRegressor(rank=2, hidden=(4,), committee=1, scaling=(0, 1)).fit(
        [(0, 1), (0, 2)], [1.0, 2.0]
    )
    ranked = model.recommend({0: 0}, 1, candidates=[np.int64(1), np.int64(2)])
    assert sorted(each.id for each in ranked) == [1, 2]
