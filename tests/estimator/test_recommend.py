"""recommend: ranks the nodes of one mode, with its uncertainty."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.spider import posterior


def regressor() -> SpiderRegressor:
    """Films a..j, rated by three users with the film's own number; "rare" was rated once."""
    rng = np.random.default_rng(0)
    films = "abcdefghij"
    entries = [(user, film) for user in (1, 2, 3) for film in films] * 15
    rng.shuffle(entries)
    value = [films.index(film) + 0.1 * rng.normal() for _, film in entries]
    entries = [(int(user), str(film)) for user, film in entries]
    model = SpiderRegressor(rank=2, hidden=(8,), scaling=(4.5, 3.0))
    return model.partial_fit([*entries, (1, "rare")], [*value, 4.5])


def test_mean_ranks_as_predict_does():
    model = regressor()
    best = model.recommend({0: 2}, over=1, n=4)
    every = [each.id for each in model.recommend({0: 2}, over=1, n=100)]
    mean = model.predict([(2, film) for film in every])
    assert len(every) == 11
    assert (np.diff(mean) <= 0).all()
    assert [each.id for each in best] == every[:4]
    assert {"j", "i"} <= set(every[:3])
    np.testing.assert_allclose([each.mean for each in best], mean[:4])


@pytest.mark.parametrize("explore", ["mean", "ucb"])
def test_the_lowest_first(explore):
    model = regressor()
    ranked = model.recommend({0: 2}, over=1, n=11, explore=explore, best="low")
    score = [each.mean - 2 * each.std * (explore == "ucb") for each in ranked]
    assert (np.diff(score) >= -1e-6).all()
    if explore == "mean":
        every = model.recommend({0: 2}, over=1, n=11)
        assert [each.id for each in ranked] == [each.id for each in every[::-1]]
    drawn = model.recommend({0: 2}, over=1, n=3, explore="thompson", seed=0, best="low")
    assert {each.id for each in drawn} <= set("abcd") | {"rare"}
    with pytest.raises(ValueError, match="best must be"):
        model.recommend({0: 2}, over=1, best="lowest")


def test_std_is_that_of_the_expected_value():
    """Without the noise of one observation."""
    model = regressor()
    for each in model.recommend({0: 1}, over=1):
        _, std = model.predict([(1, each.id)], return_std=True)
        _, var, noise = model.predict_parts([(1, each.id)])
        assert each.std**2 == pytest.approx(float(var[0]), rel=1e-6)
        assert float(std[0]) ** 2 == pytest.approx(float(var[0] + noise[0]), rel=1e-6)


def test_ucb_ranks_by_mean_plus_two_std():
    model = regressor()
    ranked = model.recommend({0: 1}, over=1, n=11, explore="ucb")
    bound = [each.mean + 2 * each.std for each in ranked]
    assert (np.diff(bound) <= 1e-6).all()


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_ucb_prefers_the_uncertain_of_two_equals(kind):
    """Five nodes with the same mean of f and other variances: the widest comes first, and a mean that is
    three of its standard deviations lower does not."""
    X = [(user, film) for user in range(3) for film in "abcde"]
    model = kind(
        rank=1,
        hidden=(2,),
        multilinear=0,
        committee=1,
        **({"scaling": (0, 1)} if kind is SpiderRegressor else {}),
    )
    model.fit(X, [0, 1] * 7 + [0])
    factors = model._fitted().state.members[0].posterior.factors[1]
    factors.mean[:], factors.var[:] = 0, 1e-6
    rows = {film: row for row, film in enumerate(model.factors()[1].ids)}
    for film, var in {"a": 1.0, "b": 4.0, "c": 9.0, "d": 9.0}.items():
        factors.var[rows[film], 0] = var
    factors.mean[rows["d"], 0] = -9.0
    ranked = [each.id for each in model.recommend({0: 1}, over=1, explore="ucb")]
    assert ranked == ["c", "b", "a", "e", "d"]
    stds = {each.id: each.std for each in model.recommend({0: 1}, over=1, explore="ucb")}
    assert stds["c"] > stds["b"] > stds["a"] > stds["e"]
    assert model.recommend({0: 1}, over=1)[-1].id == "d"


def test_ucb_counts_two_standard_deviations():
    model = regressor()
    every = model.recommend({0: 1}, over=1, n=100)
    factors = model._fitted().state.members[0].posterior.factors[1]
    for state in model._fitted().state.members:
        state.posterior.factors[1].var[:, 0] *= np.linspace(1, 400, len(factors.var))
    ranked = model.recommend({0: 1}, over=1, n=100, explore="ucb")
    bounds = {n: [each.mean + n * each.std for each in ranked] for n in (1.5, 2, 2.5)}
    assert (np.diff(bounds[2]) <= 1e-5).all()
    assert not (np.diff(bounds[1.5]) <= 0).all()
    assert not (np.diff(bounds[2.5]) <= 0).all()
    assert len(ranked) == len(every)


def test_thompson_draws_from_the_posterior():
    """Same seed, same ranking; over many seeds each film wins as often as its draws say it should."""
    model = regressor()
    first = model.recommend({0: 3}, over=1, explore="thompson", seed=5)
    assert first == model.recommend({0: 3}, over=1, explore="thompson", seed=5)
    winners = {model.recommend({0: 3}, over=1, n=1, explore="thompson", seed=s)[0].id for s in range(60)}
    assert "j" in winners
    assert "a" not in winners


def test_sample_has_the_posterior_s_moments():
    """Draws weights, a known node, and an unseen one from the prior."""
    learned = regressor()._fitted()
    _, network, prior, _ = learned.model.members[learned.leading]
    rows = [np.array([2, -1]), np.array([0])]
    samples = [
        posterior.sample(learned.leader, network, prior, rows, np.random.default_rng(s)).posterior
        for s in range(400)
    ]
    known = learned.leader.posterior.factors[0]
    unseen = posterior.factor_prior_var(network, prior, 0)
    for draws, mean, var in (
        ([s.weights[0].mean for s in samples], *learned.leader.posterior.weights[0]),
        ([s.factors[0].mean[0] for s in samples], known.mean[2], known.var[2]),
        ([s.factors[0].mean[1] for s in samples], np.zeros_like(unseen), unseen),
    ):
        np.testing.assert_allclose(np.mean(draws, axis=0), mean, atol=5 * np.sqrt(var.max() / 400))
        np.testing.assert_allclose(np.var(draws, axis=0), var, rtol=0.5)


def test_thompson_draws_a_member_by_its_weight():
    """Each member is sure of another film, which wins as often as the member weighs."""
    model = regressor()
    state = model._fitted().state
    state.weights[:] = 0
    sure = dict(zip("abcd", (0.4, 0.3, 0.2, 0.1), strict=True))
    for member, (film, weight) in enumerate(sure.items()):
        row = model.factors()[1].ids.index(film)
        state.members[member].posterior.factors[1].mean[row, 0] = 1000  # its bias
        state.weights[member] = weight
    winners = [model.recommend({0: 3}, 1, 1, explore="thompson", seed=seed)[0].id for seed in range(400)]
    for film, weight in sure.items():
        assert winners.count(film) / 400 == pytest.approx(weight, abs=4 * np.sqrt(weight / 400))


@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
@pytest.mark.parametrize("weights", [(1.0,), (0.25, 0.75)])
def test_thompson_with_few_members(weights):
    """One, or two of which the second is sure of another film."""
    X = [(user, film) for user in range(3) for film in "abcd"] * 5
    model = SpiderRegressor(rank=1, hidden=(2,), committee=len(weights), scaling=(0, 1)).fit(X, [0.0] * 60)
    state = model._fitted().state
    for member, weight in enumerate(weights):
        row = model.factors()[1].ids.index("cd"[member])
        state.members[member].posterior.factors[1].mean[row, 0] = 1000
        state.weights[member] = weight
    winners = [model.recommend({0: 1}, 1, 1, explore="thompson", seed=seed)[0].id for seed in range(200)]
    assert winners.count("c") / 200 == pytest.approx(weights[0], abs=4 * np.sqrt(0.2 / 200))
    assert set(winners) == set("cd"[: len(weights)])


def test_interval_is_that_of_predict_interval():
    model = regressor()
    for each in model.recommend({0: 1}, over=1, coverage=0.8):
        low, high = model.predict_interval([(1, each.id)], coverage=0.8)
        assert (each.low, each.high) == pytest.approx((low[0], high[0]))
        assert each.low < each.mean < each.high
    assert model.recommend({0: 1}, over=1)[0].low is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.recommend({0: 1}, over=1, coverage=1.0)


def test_classifier_ranks_by_probability():
    rng = np.random.default_rng(1)
    X = rng.integers(0, 6, (800, 2))
    model = SpiderClassifier(rank=2, hidden=(8,)).partial_fit(X, (X[:, 1] > 2).astype(int))
    best = model.recommend({0: 0}, over=1, n=3)
    assert {each.id for each in best} == {3, 4, 5}
    probability = model.predict_proba([(0, each.id) for each in best])[:, 1]
    np.testing.assert_allclose([each.mean for each in best], probability)


def test_names_unseen_ids_and_errors():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [1, 2, 1], "film": ["a", "b", "b"]})
    model = SpiderRegressor(rank=2, hidden=(4,)).partial_fit(frame, [1.0, 2.0, 3.0])
    before = model.n_nodes_
    assert {each.id for each in model.recommend({"user": 99}, over="film")} == {"a", "b"}  # from the prior
    assert model.n_nodes_ == before
    assert model._parse_ids("user", ["2"]) == [2]
    assert model._parse_ids("film", ["a"]) == ["a"]
    with pytest.raises(ValueError, match="every mode"):
        model.recommend({}, over="film")
    with pytest.raises(ValueError, match="every mode"):
        model.recommend({"user": 1, "film": "a"}, over="film")
    with pytest.raises(ValueError, match="no mode 'films'"):
        model.recommend({"user": 1}, over="films")
    with pytest.raises(ValueError, match="explore"):
        model.recommend({"user": 1}, over="film", explore="luck")
    assert model.recommend({"user": 1}, over="film", n=0) == []
